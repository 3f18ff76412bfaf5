//go:build !race

package pool

const modelRuns = 60 // default of -pool.seeds
