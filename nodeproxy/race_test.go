//go:build race

package nodeproxy

// defaultSeeds are enough to show a data race in a bubble; make torture runs many more
// without the race detector, which takes ten times as long.
const defaultSeeds = 20

// underRace says that the race detector makes everything many times slower.
const underRace = true
