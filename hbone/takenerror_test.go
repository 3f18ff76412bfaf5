package hbone

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"golang.org/x/net/http2"
)

// toldConn is a socket the reset of which was told to another: who reads sees an end.
type toldConn struct{ *simnet.Conn }

func (c toldConn) TryRead(p []byte) (int, error) {
	n, err := c.Conn.TryRead(p)
	if err == syscall.ECONNRESET {
		return 0, nil
	}
	return n, err
}

func (c toldConn) Readable() (int, error) {
	n, err := c.Conn.Readable()
	if err == syscall.ECONNRESET {
		return 0, nil
	}
	return n, err
}

// A socket tells of its reset once. If a write is told, and its caller has not yet got
// to say so, who reads does not take the end that it sees for one.
func TestAResetOfWhichAWriteWasToldIsNoEnd(t *testing.T) {
	for name, window := range map[string]uint32{"with a window": 1000, "without": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, s := rawServer(t, DefaultConfig(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
				st, id := p.openRaw(s)
				app, ours := simnet.Pair(simnet.Options{})
				result := make(chan RelayResult, 1)
				go func() { result <- Relay(context.Background(), st, toldConn{ours}) }()
				synctest.Wait()
				app.SetLinger(0)
				app.Close()
				f := p.next("the end of the stream", func(f rawFrame) bool { return f.StreamID == id && f.Type != http2.FrameHeaders })
				if f.Type != http2.FrameRSTStream || f.code != http2.ErrCodeConnect {
					t.Fatalf("%v, want RST_STREAM(CONNECT_ERROR)", f)
				}
				if res := <-result; !errors.Is(res.Err, syscall.ECONNRESET) {
					t.Errorf("the relay ended with %v, want ECONNRESET", res.Err)
				}
			})
		})
	}
}

// The error of a reset was taken off a socket before its relay began, and the peer has
// ended its half by then: the state CLOSE is not that of an end in order.
func TestAResetThatWasTakenIsNoEndBehindThePeers(t *testing.T) {
	p, s := rawServer(t, DefaultConfig())
	st, id := p.openRaw(s)
	app, ours := tcpPair(t)
	p.headers(id, true, "x", "y")
	p.sync()
	app.(*net.TCPConn).SetLinger(0)
	app.Close()
	hearsReset(t, ours.(*net.TCPConn))
	res := Relay(context.Background(), st, ours)
	f := p.next("the end of the stream", func(f rawFrame) bool { return f.StreamID == id && f.Type != http2.FrameHeaders })
	if f.Type != http2.FrameRSTStream || f.code != http2.ErrCodeConnect {
		t.Errorf("%v, want RST_STREAM(CONNECT_ERROR)", f)
	}
	if !errors.Is(res.Err, syscall.ECONNRESET) {
		t.Errorf("the relay ended with %v, want ECONNRESET", res.Err)
	}
}
