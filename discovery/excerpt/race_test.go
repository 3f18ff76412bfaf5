//go:build race

package excerpt

// manySeeds are as many random schedules as show a race; test-large has them all, without the race detector.
const manySeeds = 100
