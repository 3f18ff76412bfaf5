//go:build !race

package file

const manyPods = 10_000
