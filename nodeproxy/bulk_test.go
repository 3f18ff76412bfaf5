package nodeproxy

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"github.com/isthmus-mesh/isthmus/route"
)

func TestBulkHistoryFollowsLatestConnections(t *testing.T) {
	var h bulkHistory
	a, b := bulkTo{torturedID("shop"), "a:80"}, bulkTo{torturedID("shop"), "b:80"}
	now := time.Unix(1, 0)
	step := func(k bulkTo, bulk, want bool) {
		t.Helper()
		h.carried(k, bulk, now)
		now = now.Add(time.Second)
		if got := h.expects(k, now); got != want {
			t.Errorf("after a connection to %s with bulk %t: bulk is expected: %t, want %t", k.to, bulk, got, want)
		}
	}
	step(a, false, false)
	step(a, true, true)
	if h.expects(b, now) || h.expects(bulkTo{torturedID("till"), "a:80"}, now) {
		t.Error("bulk is expected of another destination, or of another source")
	}
	step(a, false, true)
	step(a, false, true)
	step(a, false, false)
	step(a, true, true)
	if now = now.Add(bulkKept); h.expects(a, now) {
		t.Errorf("bulk is expected %v after the last connection", bulkKept)
	}
	step(a, false, false)
}

// However many destinations there are, as many are remembered at most, and one without bulk never is.
func TestBulkHistoryIsBounded(t *testing.T) {
	var h bulkHistory
	rng := rand.New(rand.NewPCG(1, 1))
	now := time.Unix(1, 0)
	for i := range 3 * bulkMost {
		now = now.Add(time.Duration(rng.IntN(200)) * time.Millisecond)
		k := bulkTo{to: fmt.Sprint(rng.IntN(2 * bulkMost))}
		if h.carried(k, rng.IntN(4) > 0, now); len(h.by) > bulkMost {
			t.Fatalf("%d destinations are remembered after %d connections", len(h.by), i)
		}
		for range 20 {
			h.carried(bulkTo{to: "small"}, false, now)
		}
		if h.expects(bulkTo{to: "small"}, now) {
			t.Fatal("bulk is expected of a destination that never had any")
		}
	}
	for k := range h.by {
		for range 20 {
			h.carried(k, false, now)
		}
	}
	if len(h.by) > 0 {
		t.Errorf("%d destinations are remembered whose latest connections had no bulk", len(h.by))
	}
}

// bulk sends size bytes to the service and reads as many back.
func (w *distant) bulk(t *testing.T, size int) {
	t.Helper()
	from := w.sources[0]
	app, other := simnet.PairOf(simnet.Options{}, from.Addresses[0].String()+":9999", from.Addresses[0].String()+":20000")
	defer app.Close()
	w.work.Go(func() {
		if rest := w.client.carry(w.client.data, other, from.UID, route.Flow{Host: distantHost, Port: 80}, nil, nil, nil); rest != nil {
			rest(w.client.data)
		}
	})
	sent, got := bytes.Repeat([]byte("0123456789abcdef"), size/16), make([]byte, size)
	w.work.Go(func() { app.Write(sent) })
	if _, err := io.ReadFull(app, got); err != nil || !bytes.Equal(sent, got) {
		t.Errorf("%d bytes there and back: %v, the same: %t", size, err, bytes.Equal(sent, got))
	}
}

// apart lists the outer sessions for bulk.
func (w *distant) apart() (list []*hbone.Session) {
	for k, s := range w.client.pool.Sessions() {
		if k.Bulk {
			list = append(list, s)
		}
	}
	return list
}

// A destination that had bulk gets sessions apart from others, until its connections have none any more.
func TestBulkHasSessionsOfItsOwn(t *testing.T) {
	for _, off := range []bool{false, true} {
		t.Run(fmt.Sprint("disabled ", off), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newDistant(3, 1, 20*time.Millisecond)
				defer w.end()
				w.client.session.Disable.BulkApart = off
				if _, errs := w.crowd(200, 20, 100*time.Millisecond); len(errs) > 0 {
					t.Fatalf("while it gets warm: %v", errs[0])
				}
				const size = 4 << 20
				w.bulk(t, size)
				if n := len(w.apart()); n != 0 {
					t.Errorf("%d sessions for bulk before any was seen", n)
				}
				time.Sleep(time.Second)
				handshakes := w.handshakes()
				for range 3 {
					w.bulk(t, size)
					time.Sleep(2 * time.Second)
				}
				apart := w.apart()
				switch inner := w.handshakes() - handshakes; {
				case off && (len(apart) != 0 || inner != 0):
					t.Errorf("disabled: %d sessions for bulk, %d inner sessions of single connections", len(apart), inner)
				case off:
					return
				case len(apart) != 1 || inner != 3:
					t.Fatalf("three connections with bulk: %d outer sessions for bulk, %d inner ones; want 1 for all, and one each", len(apart), inner)
				}
				if n := apart[0].Streams(); n != 0 {
					t.Errorf("%d inner sessions are open after their connections", n)
				}
				if _, errs := w.crowd(20, 20, 0); len(errs) > 0 {
					t.Fatal(errs[0])
				}
				time.Sleep(time.Second)
				handshakes = w.handshakes()
				trips, errs := w.crowd(20, 20, 0)
				if len(errs) > 0 || once(trips) < 1 || w.handshakes() != handshakes {
					t.Errorf("after 20 connections without bulk: errors %v, %.0f %% took one round trip, %d handshakes; want all on sessions that are held", errs, 100*once(trips), w.handshakes()-handshakes)
				}
				if time.Sleep(2 * w.client.cfg.Timeouts.Idle); len(w.apart()) > 0 {
					t.Errorf("%d sessions for bulk are kept without connections", len(w.apart()))
				}
			})
		})
	}
}

// What NewReno leaves of a line that loses packets is found to be bulk over QUIC, and messages are not.
func TestBulkOverQUICIsFoundAtLowRate(t *testing.T) {
	for _, c := range []struct {
		name  string
		quic  bool
		piece int
		every time.Duration
		echo  bool
		want  bool
	}{
		{"1 Mbit/s in packets over QUIC", true, 1200, 10 * time.Millisecond, false, true},
		{"the same over TCP", false, 1200, 10 * time.Millisecond, false, false},
		{"1 KiB, 20 times a second over QUIC", true, 1024, 50 * time.Millisecond, false, false},
		{"1 KiB and its echo, 100 times a second over QUIC", true, 1024, 10 * time.Millisecond, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h bulkHistory
				w := &bulkWatch{h: &h, to: bulkTo{torturedID("shop"), "a:80"}, quic: c.quic}
				piece, seen := make([]byte, c.piece), w.watch(hbone.RelayOptions{})
				for range 1000 {
					time.Sleep(c.every)
					if c.echo {
						seen.OnReply(piece)
					}
					if !seen.OnSend(piece) {
						break
					}
				}
				if got := h.expects(w.to, time.Now()); got != c.want {
					t.Errorf("bulk: %v, want %v", got, c.want)
				}
			})
		})
	}
}
