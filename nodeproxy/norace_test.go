//go:build !race

package nodeproxy

const defaultSeeds = 100

const underRace = false
