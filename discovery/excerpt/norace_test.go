//go:build !race

package excerpt

// manySeeds are as many random schedules as a model has.
const manySeeds = 1000
