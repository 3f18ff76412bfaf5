package nodeproxy

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// bare is a connection as a transport, without TLS.
type bare struct{ net.Conn }

func (b bare) Peer() hbone.Peer          { return hbone.Peer{} }
func (b bare) WriteBurst(p []byte) error { _, err := b.Write(p); return err }

// noWindow is a server that answers PINGs and grants no window; it accepts a CONNECT
// after a while, or never if that is zero.
func noWindow(c net.Conn, accepts time.Duration) {
	fr := http2.NewFramer(c, c)
	io.ReadFull(c, make([]byte, len(http2.ClientPreface)))
	fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *http2.PingFrame:
			if !f.IsAck() {
				fr.WritePing(true, f.Data)
			}
		case *http2.SettingsFrame:
			if !f.IsAck() {
				fr.WriteSettingsAck()
			}
		case *http2.HeadersFrame:
			if accepts > 0 {
				time.Sleep(accepts)
				var block headerBlock
				hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
				fr.WriteHeaders(http2.HeadersFrameParam{StreamID: f.StreamID, BlockFragment: block, EndHeaders: true})
			}
		}
	}
}

type headerBlock []byte

func (b *headerBlock) Write(p []byte) (int, error) { *b = append(*b, p...); return len(p), nil }

// The far side's window is used up: early data waits for it no longer than for the
// response, and what was not sent is left for the relay.
func TestEarlyDataWaitsForNoWindow(t *testing.T) {
	for _, c := range []struct {
		name    string
		accepts time.Duration
		takes   time.Duration
	}{
		{"never a response", 0, 2 * time.Second},
		{"a response after a second", time.Second, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := simnet.Pair(simnet.Options{})
				go noWindow(far, c.accepts)
				s, err := hbone.NewClient(t.Context(), bare{near}, hbone.DefaultConfig())
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close(nil)
				app, ours := simnet.Pair(simnet.Options{})
				defer app.Close()
				io.WriteString(app, "GET / HTTP/1.1\r\n\r\n")
				e := newEarlyData(ours, nil, nil)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				if !s.Lively() {
					t.Fatal("a fresh session is not lively: nothing is tried")
				}
				start := time.Now()
				st, _, err := e.connect(ctx, s, &hbone.Request{Authority: "a:1"}, true)
				if took := time.Since(start); took != c.takes {
					t.Errorf("took %v; want %v", took, c.takes)
				}
				if accepted := c.accepts > 0; accepted != (err == nil) || e.sent != 0 || len(e.rest()) != 18 {
					t.Errorf("error %v, %d bytes sent, %d left; want 0 and 18", err, e.sent, len(e.rest()))
				}
				if st != nil {
					st.Reset(http2.ErrCodeCancel)
				}
			})
		})
	}
}
