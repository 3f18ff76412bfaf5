package hbone

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An application that answers and closes before it has read all it was sent: its client has the answer, as without us.
func TestAnEarlyAnswerIsNotLostInATunnel(t *testing.T) {
	answer := strings.Repeat("x", 8<<10)
	got := func(client, server *net.TCPConn) int {
		go func() {
			b := make([]byte, 64<<10)
			for {
				if _, err := client.Write(b); err != nil {
					return
				}
			}
		}()
		io.ReadFull(server, make([]byte, 1<<10))
		io.WriteString(server, answer)
		server.Close()
		time.Sleep(20 * time.Millisecond)
		client.SetReadDeadline(time.Now().Add(2 * time.Second))
		n, _ := io.Copy(io.Discard, client)
		return int(n)
	}
	p := newProxied(t, rigConfig{})
	direct, through := 0, 0
	for range 50 {
		a, b := tcpPair(t)
		if got(a.(*net.TCPConn), b.(*net.TCPConn)) == len(answer) {
			direct++
		}
		client, app, _ := p.connect(t)
		if got(client, app) == len(answer) {
			through++
		}
	}
	t.Logf("whole answers: %d directly, %d through the tunnel", direct, through)
	if through < direct {
		t.Errorf("%d of %d answers are lost", direct-through, direct)
	}
	p.r.asBefore(t)
}

// What a client says before it resets is there for its server to be read, and then the reset.
func TestAResetComesBehindWhatWasSaidBefore(t *testing.T) {
	said := strings.Repeat("x", 8<<10)
	p := newProxied(t, rigConfig{})
	for range 50 {
		client, app, result := p.connect(t)
		io.WriteString(client, said)
		client.SetLinger(0)
		client.Close()
		<-result
		<-p.results
		got, err := io.ReadAll(app)
		if string(got) != said || !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("the server's application read %d of %d bytes, then %v; want ECONNRESET behind them", len(got), len(said), err)
		}
	}
	p.r.asBefore(t)
}
