//go:build !race

package discovery

const manyPods = 10_000
