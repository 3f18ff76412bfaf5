package hbone

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"golang.org/x/net/http2"
)

// A stock client that drops its inner connection may leave its last END_STREAM
// out. Only where a gateway stands surety, and the application had said all it
// wanted to, is that an end.
func TestTheEndOfTheTransportMayEndAStream(t *testing.T) {
	want := bytes.Repeat([]byte("to the end "), 20_000)
	for _, c := range []struct {
		name            string
		marked, appEnds bool
		midFrame        bool // in the middle of a frame
		clean           bool
	}{
		{"behind the application's end", true, true, false, true},
		{"while the application still talks", true, false, false, false},
		{"in the middle of a frame", true, true, true, false},
		{"without a gateway", false, true, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, app, relayed := throughGateway(t, c.marked)
			if c.appEnds {
				app.CloseWrite()
				client.next("the application's end", func(f rawFrame) bool { return f.Type == http2.FrameData && f.Flags.Has(http2.FlagDataEndStream) })
			}
			inOneBurst(client, func(fr *http2.Framer) {
				for rest := want; len(rest) > 0; rest = rest[min(len(rest), 16<<10):] {
					fr.WriteData(1, false, rest[:min(len(rest), 16<<10)])
				}
				if c.midFrame {
					fr.WriteRawFrame(http2.FrameData, 0, 1, nil)
				}
			})
			if c.midFrame {
				client.c.Write([]byte{0, 0, 1})
			}
			client.c.(*simnet.Conn).CloseWrite()
			app.SetReadDeadline(time.Now().Add(20 * time.Second))
			got, err := io.ReadAll(app)
			switch {
			case c.clean && (err != nil || !bytes.Equal(got, want)):
				t.Errorf("the application got %d bytes and %v, want %d and a FIN", len(got), err, len(want))
			case !c.clean && !errors.Is(err, syscall.ECONNRESET):
				t.Errorf("the application got %d bytes and %v, want a reset", len(got), err)
			}
			app.Close()
			if res := <-relayed; (res.Err == nil) != c.clean {
				t.Errorf("relay ended with %v", res.Err)
			}
		})
	}
}

// throughGateway is a raw client whose stream 1 is relayed to an application.
func throughGateway(t *testing.T, marked bool) (*rawPeer, *net.TCPConn, chan RelayResult) {
	a, app := tcpPair(t)
	t.Cleanup(func() { app.Close() })
	relayed := make(chan RelayResult, 1)
	p, _ := rawClient(t, DefaultConfig(), func(ctx context.Context, in *Incoming) {
		st, err := in.Accept(nil)
		if err != nil {
			t.Error(err)
			return
		}
		if marked {
			st.EndAtEOF()
		}
		relayed <- Relay(ctx, st, a)
	})
	p.connect(1)
	p.kind(http2.FrameHeaders, 1)
	return p, app.(*net.TCPConn), relayed
}
