package healthstream

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/peer"
)

// maxPending is how many changed records an uplink tells apart; beyond them it
// sends the full state.
const maxPending = 4096

// uplink holds what one attached stream still has to send: the newest record
// of each key. When that is too much it sends the full state instead.
type uplink struct {
	conn   *healthConn
	signal chan struct{}

	mu      sync.Mutex
	pending map[federation.Key]peer.Waiting
	resync  bool
}

func newUplink(c *healthConn) *uplink {
	// The first thing that a gateway gets is the full state.
	u := &uplink{conn: c, signal: make(chan struct{}, 1), pending: map[federation.Key]peer.Waiting{}, resync: true}
	u.signal <- struct{}{}
	return u
}

func (u *uplink) put(records []federation.Record, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, r := range records {
		k := r.Key()
		if old, ok := u.pending[k]; ok && old.Record.Sequence > r.Sequence {
			continue
		} else if !ok && len(u.pending) >= maxPending {
			u.resync = true
			clear(u.pending)
		}
		u.pending[k] = peer.Waiting{Record: r, Since: now}
	}
	select {
	case u.signal <- struct{}{}:
	default:
	}
}

func (u *uplink) take(now time.Time) (records []federation.Record, resync bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, w := range u.pending {
		records = append(records, w.At(now))
	}
	clear(u.pending)
	resync, u.resync = u.resync, false
	return records, resync
}

// run writes until ctx ends or the stream fails.
func (u *uplink) run(ctx context.Context, cfg ClientConfig, current func() []federation.Record) error {
	heartbeat := time.NewTicker(cfg.Heartbeat)
	defer heartbeat.Stop()
	refresh := time.NewTicker(cfg.Refresh)
	defer refresh.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-u.signal:
			records, resync := u.take(time.Now())
			if resync {
				records = append(records, current()...)
			}
			err = u.conn.writeRecords(records)
		case <-refresh.C:
			err = u.conn.writeRecords(notDefault(current()))
		case <-heartbeat.C:
			err = u.conn.heartbeat()
		}
		if err != nil {
			return fmt.Errorf("write to gateway: %w", err)
		}
	}
}

func notDefault(records []federation.Record) []federation.Record {
	out := records[:0]
	for _, r := range records {
		if !r.Default() {
			out = append(out, r)
		}
	}
	return out
}
