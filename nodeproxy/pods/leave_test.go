package pods

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// stuckListener is that of a pod in which nothing ends.
type stuckListener struct {
	net.Listener
	end chan struct{}
}

func (s stuckListener) Close() error {
	<-s.end
	return nil
}

// A pod in which nothing ends holds up neither the drain of another one when this process stops, nor the end of the process for
// longer than that may take.
func TestAPodInWhichNothingEndsHoldsUpNobodysDrain(t *testing.T) {
	end := make(chan struct{})
	defer close(end)
	listen := func() Listeners {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return Listeners{Tunnels: l.(*net.TCPListener)}
	}
	other := listen()
	c := &Set{held: map[string]*Pod{"other": {uid: "other", incoming: other, server: idle{}}}, gone: map[chan struct{}]struct{}{}}
	for _, uid := range []string{"a", "b", "c"} {
		c.held[uid] = &Pod{uid: uid, incoming: listen(), server: idle{}, names: &nameSockets{tcp: []net.Listener{stuckListener{end: end}}}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		c.Drain(ctx)
	}()
	closed := make(chan error, 1)
	go func() {
		_, err := other.Tunnels.Accept()
		closed <- err
	}()
	select {
	case err := <-closed:
		if !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("another pod is not drained")
	}
	cancel()
	select {
	case <-drained:
	case <-time.After(10 * time.Second):
		t.Error("when its time is over the drain goes on")
	}
}

// countedDrains ends when it is told to.
type countedDrains struct {
	idle
	drains     atomic.Int32
	begun, end chan struct{}
}

func (c *countedDrains) Drain(context.Context) {
	if c.drains.Add(1) == 1 {
		close(c.begun)
	}
	<-c.end
}

// A pod that leaves while this process stops is drained once: sessions that are told twice to end may end too early, or
// nobody hears of their end.
func TestAPodThatLeavesWhileThisProcessStopsIsDrainedOnce(t *testing.T) {
	server := &countedDrains{begun: make(chan struct{}), end: make(chan struct{})}
	h := &Pod{uid: "shop", server: server}
	var both sync.WaitGroup
	both.Go(func() { h.drain(t.Context()) })
	<-server.begun
	both.Go(func() { h.drain(t.Context()) })
	close(server.end)
	both.Wait()
	if n := server.drains.Load(); n != 1 {
		t.Errorf("it is drained %d times", n)
	}
}
