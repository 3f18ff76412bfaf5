//go:build race

package antientropy

// modelSeeds are one for each size of the model, which is one goroutine in virtual
// time: the race detector finds nothing in it, and takes ten times as long.
var modelSeeds = []int{1, 2}
