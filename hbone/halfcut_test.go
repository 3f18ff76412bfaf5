package hbone

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// socketError takes the pending error of c, which a reset leaves there. A read does not
// tell it behind a FIN.
func socketError(t testing.TB, c *net.TCPConn) (err error) {
	t.Helper()
	raw, rerr := c.SyscallConn()
	check(t, rerr)
	check(t, raw.Control(func(fd uintptr) {
		n, serr := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR)
		if err = serr; n != 0 {
			err = syscall.Errno(n)
		}
	}))
	return err
}

// hearsReset waits until c has been reset, without using it.
func hearsReset(t testing.TB, c *net.TCPConn) {
	t.Helper()
	eventually(t, "the application is reset", func() bool { return socketError(t, c) != nil })
}

// A server's application ends its half at once and takes an upload. When the server's
// relay is cut short, what is under way is lost: the client must not take that for an end.
func TestACutRelayIsNoEndBehindAHalfClose(t *testing.T) {
	for name, o := range map[string]RelayOptions{
		"by its context":  {},
		"when HalfClosed": {HalfClosed: 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cut := context.WithCancel(context.Background())
			defer cut()
			apps, served := make(chan net.Conn, 1), make(chan RelayResult, 1)
			r := newRig(t, rigConfig{handler: func(_ context.Context, in *Incoming) {
				a, b := tcpPair(t)
				st, err := in.Accept(nil)
				if err != nil {
					return
				}
				apps <- b
				served <- RelayWith(ctx, st, a, o)
			}})
			a, b := tcpPair(t)
			client := a.(*net.TCPConn)
			defer client.Close()
			st := open(t, r.client)
			result := make(chan RelayResult, 1)
			go func() { result <- Relay(context.Background(), st, b) }()
			app := (<-apps).(*net.TCPConn)
			defer app.Close()
			app.CloseWrite()
			if _, err := client.Read(make([]byte, 1)); err != io.EOF {
				t.Fatalf("the client read %v, want the server's FIN", err)
			}
			if o.HalfClosed == 0 {
				cut()
			}
			if res := <-served; res.Err == nil {
				t.Error("the server's relay was cut and ended without an error")
			}
			eventually(t, "the client hears of the end", func() bool { return r.client.Streams() == 0 })
			_, werr := client.Write([]byte("more of the upload"))
			res := <-result
			var reset *ResetError
			if !errors.As(res.Err, &reset) || !reset.Remote || reset.Code != http2.ErrCodeConnect {
				t.Errorf("the client's relay ended with %v, want the peer's CONNECT_ERROR", res.Err)
			}
			if res.Err != nil && werr == nil { // a write takes the error off the socket
				hearsReset(t, client)
			}
		})
	}
}

// A server's application ends its half; the client's application has nothing to say
// yet. When the stream breaks now, with nothing under way, both hear of it.
func TestAnIdleApplicationHearsOfAResetBehindAnEnd(t *testing.T) {
	for name, kill := range map[string]func(r *rig, app *net.TCPConn){
		"the application resets": func(_ *rig, app *net.TCPConn) { app.SetLinger(0); app.Close() },
		"the transport breaks":   func(r *rig, _ *net.TCPConn) { breakTransport(r.server) },
		"the session ends":       func(r *rig, _ *net.TCPConn) { r.server.Close(ErrCertificateExpired) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxied(t, rigConfig{})
			client, app, result := p.connect(t)
			app.Write([]byte("all there is"))
			app.CloseWrite()
			if got, err := io.ReadAll(client); err != nil || string(got) != "all there is" {
				t.Fatalf("the client read %q, %v", got, err)
			}
			kill(p.r, app)
			hearsReset(t, client)
			for side, of := range map[string]chan RelayResult{"client": result, "server": p.results} {
				if res := <-of; res.Err == nil {
					t.Errorf("the %s's relay ended without an error", side)
				}
			}
		})
	}
}

// The same with a relay of two streams in between, on either side of which it breaks.
func TestARelayOfStreamsPassesAResetBehindAnEndOn(t *testing.T) {
	p := newProxied(t, rigConfig{})
	results := make(chan RelayResult, 1)
	front := newRig(t, rigConfig{handler: func(ctx context.Context, in *Incoming) {
		next := open(t, p.r.client)
		st, err := in.Accept(nil)
		if err != nil {
			return
		}
		results <- Relay(ctx, st, next)
	}})
	a, b := tcpPair(t)
	client := a.(*net.TCPConn)
	defer client.Close()
	st := open(t, front.client)
	result := make(chan RelayResult, 1)
	go func() { result <- Relay(context.Background(), st, b) }()
	app := (<-p.app).(*net.TCPConn)
	app.CloseWrite()
	if _, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("the client read %v, want the server's FIN", err)
	}
	app.SetLinger(0)
	app.Close()
	hearsReset(t, client)
	for where, of := range map[string]chan RelayResult{"client": result, "middle": results, "server": p.results} {
		if res := <-of; res.Err == nil {
			t.Errorf("the relay of the %s ended without an error", where)
		}
	}
}
