package hbone

import (
	"context"
	"io"
	"runtime"
	"testing"
)

// allocsPerConnection is how many objects one proxied connection on a warm
// session may allocate at both ends together: CONNECT and its answer, two relays,
// one byte each way, the ends. Measured 82 (2026-11), without the application's
// sockets.
const allocsPerConnection = 100

// allocsPerEcho is how many objects a message may, there and back through two
// relays. Measured 2 (2026-11): crypto/tls makes one for each record that it reads.
const allocsPerEcho = 3

func TestAllocationsPerProxiedConnection(t *testing.T) {
	overTCP(t, "allocations")
	if raceEnabled {
		t.Skip("the race detector allocates, and empties pools")
	}
	p := newProxied(t, rigConfig{})
	connection := func() {
		client, app, result := p.connect(t)
		one := []byte{1}
		client.Write(one)
		io.ReadFull(app, one)
		app.Write(one)
		io.ReadFull(client, one)
		client.CloseWrite()
		app.Read(one)
		app.Close()
		<-result
		<-p.results
		client.Close()
	}
	sockets := func() {
		for range 2 {
			a, b := tcpPair(t)
			a.Close()
			b.Close()
		}
	}
	allocs := func(f func()) float64 {
		const runs = 200
		for range 50 {
			f()
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			f()
		}
		runtime.ReadMemStats(&after)
		return float64(after.Mallocs-before.Mallocs) / runs
	}
	all, own := allocs(connection), allocs(sockets)
	t.Logf("%.0f objects per connection, %.0f of them for the test's sockets", all, own)
	if n := all - own; n > allocsPerConnection {
		t.Errorf("%.0f objects per proxied connection, want at most %d", n, allocsPerConnection)
	}
}

func TestAllocationsPerMessage(t *testing.T) {
	overTCP(t, "allocations")
	if raceEnabled {
		t.Skip("the race detector allocates, and empties pools")
	}
	r := newRig(t, rigConfig{handler: func(ctx context.Context, in *Incoming) {
		if st, err := in.Accept(nil); err == nil {
			x, y := tcpPair(t)
			go func() {
				for buf := make([]byte, 1<<10); ; {
					n, err := y.Read(buf)
					if err != nil {
						return
					}
					y.Write(buf[:n])
				}
			}()
			Relay(ctx, st, x)
		}
	}})
	x, y := tcpPair(t)
	go Relay(context.Background(), open(t, r.client), x)
	buf := make([]byte, 1<<10)
	if n := testing.AllocsPerRun(500, func() {
		y.Write(buf)
		io.ReadFull(y, buf)
	}); n > allocsPerEcho {
		t.Errorf("%v objects per message, want at most %d", n, allocsPerEcho)
	}
	y.Close()
}
