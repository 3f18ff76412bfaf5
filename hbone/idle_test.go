package hbone

import (
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// forgetful is a load balancer between two ends: it drops all, without a word, once
// nothing has passed it in either direction for after.
type forgetful struct {
	after time.Duration

	mu        sync.Mutex
	last      time.Time
	forgotten bool
}

func (f *forgetful) passes() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	f.forgotten = f.forgotten || now.Sub(f.last) > f.after
	f.last = now
	return !f.forgotten
}

// behind is one end.
type behind struct {
	*simnet.Conn
	middle *forgetful
}

func (b behind) Write(p []byte) (int, error) {
	if !b.middle.passes() {
		return len(p), nil
	}
	return b.Conn.Write(p)
}

func (b behind) TryWrite(p []byte) (int, error) {
	if !b.middle.passes() {
		return len(p), nil
	}
	return b.Conn.TryWrite(p)
}

// Load balancers forget idle connections, the first of the large clouds after four
// minutes, and say nothing to either end. A session that carries nothing, with a stream
// that says nothing and without one, must not be forgotten; that the load balancer here
// does forget, a session without PINGs shows.
func TestIdleSessionsOutliveLoadBalancersThatForget(t *testing.T) {
	idle := func(t *testing.T, pings time.Duration, withStream bool) error {
		c := DefaultConfig()
		c.PingEvery = pings
		middle := &forgetful{after: 4 * time.Minute, last: time.Now()}
		r := newRig(t, rigConfig{client: c, server: c, handler: echoHandler, pair: func(testing.TB) (net.Conn, net.Conn) {
			a, b := simnet.Pair(simnet.Options{Delay: 20 * time.Millisecond})
			return behind{a, middle}, behind{b, middle}
		}})
		var st *Stream
		if withStream {
			st = open(t, r.client)
		}
		time.Sleep(time.Hour)
		if !withStream {
			var err error
			if st, _, err = r.client.Open(t.Context(), &Request{Authority: "a:1"}); err != nil {
				return err
			}
		}
		if _, err := st.Write([]byte("still here?")); err != nil {
			return err
		}
		st.SetReadDeadline(time.Now().Add(time.Minute))
		_, err := st.Read(make([]byte, 32))
		return err
	}
	for _, withStream := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			if err := idle(t, DefaultConfig().PingEvery, withStream); err != nil {
				t.Errorf("an hour without data, with a stream %v: %v", withStream, err)
			}
		})
		synctest.Test(t, func(t *testing.T) {
			if err := idle(t, -1, withStream); err == nil {
				t.Errorf("without PINGs nothing was forgotten, with a stream %v: this load balancer tests nothing", withStream)
			}
		})
	}
}
