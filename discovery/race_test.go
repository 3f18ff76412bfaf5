//go:build race

package discovery

// manyPods are as many as show what a large mesh would; the race detector takes ten
// times as long for each.
const manyPods = 1_000
