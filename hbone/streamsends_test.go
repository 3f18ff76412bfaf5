package hbone

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// joined is an application on both ends with a relay of two streams in between, which
// is what a gateway that has a session on both sides does.
type joined struct {
	front   *rig
	back    *proxied
	results chan RelayResult // of the relay in between
}

func newJoined(t testing.TB) *joined {
	t.Helper()
	j := &joined{back: newProxied(t, rigConfig{}), results: make(chan RelayResult, 100)}
	j.front = newRig(t, rigConfig{handler: func(ctx context.Context, in *Incoming) {
		next, _, err := j.back.r.client.Open(context.Background(), &Request{Authority: "app.default:80"})
		if err != nil {
			in.Refuse(503, nil)
			return
		}
		st, err := in.Accept(nil)
		if err != nil {
			next.Reset(8)
			return
		}
		j.results <- Relay(ctx, st, next)
	}})
	return j
}

// connect opens an application connection; result is that of the client's relay.
func (j *joined) connect(t testing.TB) (client, app *net.TCPConn, result chan RelayResult) {
	t.Helper()
	a, b := tcpPair(t)
	st := open(t, j.front.client)
	result = make(chan RelayResult, 1)
	go func() { result <- Relay(context.Background(), st, b) }()
	app = (<-j.back.app).(*net.TCPConn)
	t.Cleanup(func() { a.Close(); app.Close() })
	return a.(*net.TCPConn), app, result
}

// A relay of streams holds back no more of what was said before a reset than one of
// connections.
func TestAResetComesBehindWhatWasSaidThroughARelayOfStreams(t *testing.T) {
	said := strings.Repeat("x", 8<<10)
	j := newJoined(t)
	lost := 0
	for range 50 {
		client, app, result := j.connect(t)
		io.WriteString(client, said)
		client.SetLinger(0)
		client.Close()
		for where, of := range map[string]chan RelayResult{"client": result, "middle": j.results, "server": j.back.results} {
			if res := <-of; res.Err == nil {
				t.Errorf("the relay of the %s ended without an error", where)
			}
		}
		got, err := io.ReadAll(app)
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("the server's application read %d of %d bytes, then %v; want ECONNRESET", len(got), len(said), err)
		}
		if string(got) != said {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of 50 were cut short", lost)
	}
	j.front.asBefore(t)
	j.back.r.asBefore(t)
}

func TestAnEarlyAnswerIsNotLostInARelayOfStreams(t *testing.T) {
	answer := strings.Repeat("x", 8<<10)
	j := newJoined(t)
	lost := 0
	for range 50 {
		client, app, result := j.connect(t)
		go func() {
			b := make([]byte, 64<<10)
			for {
				if _, err := client.Write(b); err != nil {
					return
				}
			}
		}()
		io.ReadFull(app, make([]byte, 1<<10))
		io.WriteString(app, answer)
		app.Close()
		<-result
		<-j.results
		<-j.back.results
		client.SetReadDeadline(time.Now().Add(2 * time.Second))
		if got, _ := io.ReadAll(client); string(got) != answer {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of 50 answers were lost", lost)
	}
	j.front.asBefore(t)
	j.back.r.asBefore(t)
}
