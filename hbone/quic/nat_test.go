package quic

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// nat passes packets of one client on to server, from a socket of its own.
type nat struct {
	t      testing.TB
	server net.Addr
	front  net.PacketConn
	loses  atomic.Bool  // what the server sends
	delay  atomic.Int64 // of each packet

	mu     sync.Mutex
	client net.Addr
	back   net.PacketConn
}

func newNAT(t testing.TB, server net.Addr) *nat {
	n := &nat{t: t, server: server}
	n.rebind()
	n.serve(udp(t))
	t.Cleanup(func() { n.front.Close(); n.back.Close() })
	return n
}

// serve passes on what clients send to front.
func (n *nat) serve(front net.PacketConn) {
	n.mu.Lock()
	n.front = front
	n.mu.Unlock()
	go func() {
		buf := make([]byte, 2048)
		for {
			k, from, err := front.ReadFrom(buf)
			if err != nil {
				return
			}
			n.pass(buf[:k], func(b []byte) {
				n.client = from
				n.back.WriteTo(b, n.server)
			})
		}
	}()
}

// pass calls send with b, after the delay of the path.
func (n *nat) pass(b []byte, send func(b []byte)) {
	if d := time.Duration(n.delay.Load()); d > 0 {
		b = bytes.Clone(b)
		time.AfterFunc(d, func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			send(b)
		})
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	send(b)
}

// rebind has the server see another address of the client.
func (n *nat) rebind() {
	back := udp(n.t)
	n.mu.Lock()
	old := n.back
	n.back = back
	n.mu.Unlock()
	if old != nil {
		old.Close()
	}
	go func() {
		buf := make([]byte, 2048)
		for {
			k, _, err := back.ReadFrom(buf)
			if err != nil {
				return
			}
			n.pass(buf[:k], func(b []byte) {
				if n.client != nil && !n.loses.Load() {
					n.front.WriteTo(b, n.client)
				}
			})
		}
	}()
}

func TestClientAddressChanges(t *testing.T) {
	r := newRig(t, rigConfig{})
	n := newNAT(t, r.listener.Addr())
	p, err := Dial(context.Background(), udp(t), n.front.LocalAddr(), r.clientTLS(), DialConfig{})
	check(t, err)
	s, err := hbone.StartClient(p, hbone.DefaultConfig())
	check(t, err)
	defer func() { s.Close(nil); <-s.Closed() }()
	st := open(t, s)
	defer st.Close()
	for i := range 3 {
		started := time.Now()
		data := make([]byte, 100<<10)
		go st.Write(data)
		if _, err := io.ReadFull(st, data); err != nil {
			t.Fatalf("behind address %d: %v", i, err)
		}
		t.Logf("100 KiB there and back behind address %d took %v", i, time.Since(started))
		n.rebind()
	}
}
