package quic

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// An ICMP error of a port fails the session if the peer is gone, and only then.
func TestRefusedPort(t *testing.T) {
	for _, c := range []struct {
		name    string
		returns bool
	}{{"peer is gone", false}, {"peer is there", true}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, rigConfig{})
			n := newNAT(t, r.listener.Addr())
			p, err := Dial(context.Background(), udp(t), n.front.LocalAddr(), r.clientTLS(), DialConfig{})
			check(t, err)
			s, err := hbone.StartClient(p, hbone.DefaultConfig())
			check(t, err)
			defer func() { s.Close(nil); <-s.Closed() }()
			st := open(t, s)
			defer st.Close()
			there := func() error {
				if _, err := st.Write([]byte("x")); err != nil {
					return err
				}
				_, err := io.ReadFull(st, make([]byte, 1))
				return err
			}
			check(t, there())

			at := n.front.LocalAddr().(*net.UDPAddr)
			n.front.Close()
			began := time.Now()
			if c.returns {
				_, err := st.Write([]byte("x"))
				check(t, err)
				time.Sleep(verifyWithin / 10)
				front, err := net.ListenUDP("udp", at)
				check(t, err)
				n.serve(front)
				_, err = io.ReadFull(st, make([]byte, 1))
				check(t, err)
				time.Sleep(verifyWithin * 3 / 2)
				check(t, there())
				return
			}
			err = there()
			if took := time.Since(began); !errors.Is(s.Err(), syscall.ECONNREFUSED) || took > 4*verifyWithin {
				t.Errorf("after %v: %v, session %v; want that the port is refused", took, err, s.Err())
			}
		})
	}
}
