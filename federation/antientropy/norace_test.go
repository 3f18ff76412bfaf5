//go:build !race

package antientropy

var modelSeeds = []int{1, 2, 3, 4, 7, 21}
