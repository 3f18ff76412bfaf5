//go:build race

package gossip

import "time"

// Long spells are a sixth of what they are in a mesh: each connection of one is like the
// others, and the race detector takes ten times as long. make test runs the tests of whole
// hours without it.
const anHour = 10 * time.Minute
