package hbone

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// endedUpload is an upload whose END_STREAM has arrived at a relay, and most of which waits
// there for an application that does not read yet.
type endedUpload struct {
	client, server *Session
	st             *Stream
	app            *net.TCPConn
	size           int64
	result         chan RelayResult // of the relay, whose context is its handler's
	served         chan error
	stop           context.CancelFunc // of Serve's context
}

func startEndedUpload(t *testing.T) *endedUpload {
	t.Helper()
	u := &endedUpload{size: 900 << 10, result: make(chan RelayResult, 1), served: make(chan error, 1)}
	apps := make(chan net.Conn, 1)
	a, b := tcpPair(t)
	ct, st := tlsOver(t, a, b)
	u.server = NewServer(st, Config{}, func(ctx context.Context, in *Incoming) {
		c, app := tcpPair(t)
		c.(*net.TCPConn).SetWriteBuffer(32 << 10)
		app.(*net.TCPConn).SetReadBuffer(32 << 10)
		st, err := in.Accept(nil)
		if err != nil {
			t.Error(err)
		}
		apps <- app
		u.result <- Relay(ctx, st, c)
	})
	ctx, stop := context.WithCancel(context.Background())
	u.stop = stop
	go func() { u.served <- u.server.Serve(ctx) }()
	var err error
	u.client, err = NewClient(context.Background(), ct, Config{})
	check(t, err)
	u.st = open(t, u.client)
	u.app = (<-apps).(*net.TCPConn)
	t.Cleanup(func() { stop(); u.client.Close(nil); u.app.Close() })
	_, err = u.st.Write(make([]byte, u.size))
	check(t, err)
	return u
}

// hasEnd waits until the peer's END_STREAM of the one stream of s has arrived.
func hasEnd(t testing.TB, s *Session) {
	t.Helper()
	eventually(t, "END_STREAM has arrived", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, st := range s.streams {
			return st.endReceived
		}
		return false
	})
}

// An upload that had ended is complete, however its stream breaks behind END_STREAM: the application reads all of it and
// an end, as a connection that gets a reset behind a FIN has that read. Then it is reset.
func TestAnUploadThatEndedIsWholeHoweverItsStreamBreaks(t *testing.T) {
	breaks := map[string]func(u *endedUpload){
		"reset":        func(u *endedUpload) { u.st.resetBehind(http2.ErrCodeConnect, errors.New("reset")) },
		"session lost": func(u *endedUpload) { breakTransport(u.client) },
	}
	for name, breaks := range breaks {
		for _, when := range []string{"at once", "later", "while the application speaks"} {
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				u := startEndedUpload(t)
				u.st.CloseWrite()
				if when != "at once" || name == "session lost" { // which takes with it what is not sent yet
					hasEnd(t, u.server)
				}
				breaks(u)
				time.Sleep(100 * time.Millisecond)
				if when == "while the application speaks" {
					io.WriteString(u.app, "nobody hears that any more")
					time.Sleep(100 * time.Millisecond)
				}
				u.app.SetReadDeadline(time.Now().Add(20 * time.Second))
				if n, err := io.Copy(io.Discard, u.app); n != u.size || err != nil {
					t.Errorf("the application read %d of %d bytes, then %v; want all and an end", n, u.size, err)
				}
				if res := <-u.result; res.Err == nil || res.ToConn != u.size {
					t.Errorf("the relay ended with %+v, want why the stream broke, and %d bytes", res, u.size)
				}
				hearsReset(t, u.app)
			})
		}
	}
}

// The same from application to application: the client has sent its FIN and closes with its answer unread.
func TestAnUploadThatEndedIsWholeThoughItsClientResets(t *testing.T) {
	const n = 900 << 10
	p := newProxied(t, rigConfig{})
	client, app, result := p.connect(t)
	app.SetReadBuffer(32 << 10)
	io.WriteString(app, "something that the client does not read")
	go func() {
		client.Write(make([]byte, n))
		client.CloseWrite()
	}()
	hasEnd(t, p.r.server)
	client.Close() // with bytes unread
	time.Sleep(50 * time.Millisecond)
	if got, err := io.Copy(io.Discard, app); got != n || err != nil {
		t.Errorf("the server's application read %d of %d bytes, then %v; want all and an end", got, n, err)
	}
	for side, of := range map[string]chan RelayResult{"client": result, "server": p.results} {
		if res := <-of; res.Err == nil {
			t.Errorf("the %s's relay ended without an error", side)
		}
	}
}

// A relay goes on behind the end of its stream, but not behind that of Serve's context: a process that stops does not wait
// for an application that reads nothing.
func TestServeDoesNotWaitForWhatEndedAndIsNotRead(t *testing.T) {
	u := startEndedUpload(t)
	u.st.CloseWrite()
	u.st.resetBehind(http2.ErrCodeConnect, errors.New("reset"))
	select {
	case res := <-u.result:
		t.Fatalf("the relay has ended with %v, and the application has read nothing", res.Err)
	case <-time.After(200 * time.Millisecond):
	}
	u.stop()
	select {
	case <-u.served:
	case <-time.After(stallTime / 2):
		t.Error("Serve waits for a relay whose application does not read")
	}
}

// What this end cuts is cut at once, END_STREAM received or not.
func TestARelayThatIsCutDoesNotDeliverWhatEnded(t *testing.T) {
	u := startEndedUpload(t)
	u.st.CloseWrite()
	hasEnd(t, u.server)
	time.Sleep(100 * time.Millisecond) // somebody waits for the application to read
	u.server.mu.Lock()
	st := u.server.streams[u.st.id]
	u.server.mu.Unlock()
	st.Reset(http2.ErrCodeConnect)
	select {
	case <-u.result:
	case <-time.After(stallTime / 2):
		t.Error("the relay of a stream that was reset here goes on")
	}
}
