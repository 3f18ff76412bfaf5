//go:build !race

package gossip

import "time"

const anHour = time.Hour
