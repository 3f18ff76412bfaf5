package quic

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// droppingConn drops each twentieth packet that it writes, while on.
type droppingConn struct {
	net.PacketConn
	on               atomic.Bool
	packets          atomic.Int64
	written, dropped atomic.Uint64 // bytes
	largest          atomic.Int64  // packet
}

func (c *droppingConn) WriteTo(b []byte, to net.Addr) (int, error) {
	c.written.Add(uint64(len(b)))
	if n := int64(len(b)); n > c.largest.Load() { // quic-go writes in one goroutine
		c.largest.Store(n)
	}
	if c.packets.Add(1)%20 == 0 && c.on.Load() {
		c.dropped.Add(uint64(len(b)))
		return len(b), nil
	}
	return c.PacketConn.WriteTo(b, to)
}

// The statistics of a session are those of its connection: lost bytes are what was dropped, but for packets with
// acknowledgements alone.
func TestSessionHasStatsOfConnection(t *testing.T) {
	r := newRig(t, rigConfig{})
	c := &droppingConn{PacketConn: udp(t)}
	p, err := Dial(context.Background(), c, r.listener.Addr(), r.clientTLS(), DialConfig{})
	check(t, err)
	s, err := hbone.StartClient(p, hbone.DefaultConfig())
	check(t, err)
	defer func() { s.Close(nil); <-s.Closed() }()
	st := open(t, s)
	defer st.Close()
	c.on.Store(true)
	for range 20 { // echoes
		data := make([]byte, 50<<10)
		go st.Write(data)
		_, err := io.ReadFull(st, data)
		check(t, err)
	}
	c.on.Store(false)
	x, ok := s.PipeStats()
	if !ok || x.MinRTT <= 0 || x.RTT < x.MinRTT {
		t.Fatalf("%+v, %v; want round-trip times", x, ok)
	}
	t.Logf("%+v; %d bytes were written, %d dropped", x, c.written.Load(), c.dropped.Load())
	if w := c.written.Load(); x.Sent < 1e6 || x.Sent > w/10*11 || x.Sent < w/10*9 {
		t.Errorf("sent %d bytes, want the %d written", x.Sent, w)
	}
	if n := c.largest.Load(); n != PacketSize {
		t.Errorf("the largest packet has %d bytes, want %d: a path with a smaller MTU would lose it", n, PacketSize)
	}
	if d := c.dropped.Load(); x.Lost < d/2 || x.Lost > d/2*3 {
		t.Errorf("lost %d bytes, want about the %d dropped", x.Lost, d)
	}
}
