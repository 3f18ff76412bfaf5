package hbone

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestBulkIsLargePiecesThatFollowEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name  string
			piece int
			pause time.Duration
			bulk  bool
		}{
			{"transfer", 64 << 10, time.Millisecond, true},
			{"transfer over a slow line", 16 << 10, 15 * time.Millisecond, true},
			{"large answers now and then", 64 << 10, 200 * time.Millisecond, false},
			{"very many small messages", 4 << 10, time.Microsecond, false},
		} {
			var m bulkMeter
			for range 1000 {
				m.add(c.piece)
				time.Sleep(c.pause)
			}
			if bulk := time.Since(m.seen) < bulkHold; bulk != c.bulk {
				t.Errorf("%s: bulk %v, want %v", c.name, bulk, c.bulk)
			}
			time.Sleep(bulkHold)
			if time.Since(m.seen) < bulkHold {
				t.Errorf("%s: still bulk after %v without any", c.name, bulkHold)
			}
		}
	})
}
