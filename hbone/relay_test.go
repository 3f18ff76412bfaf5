package hbone

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
)

// proxied is an application on both ends: client — relay — tunnel — relay — app.
type proxied struct {
	r       *rig
	results chan RelayResult // of the server side
	app     chan net.Conn    // the application's side of the connection
}

func newProxied(t testing.TB, c rigConfig) *proxied {
	t.Helper()
	p := &proxied{results: make(chan RelayResult, 100), app: make(chan net.Conn, 100)}
	var mu sync.Mutex
	c.handler = func(ctx context.Context, in *Incoming) {
		mu.Lock()
		a, b := tcpPair(t)
		mu.Unlock()
		st, err := in.Accept(nil)
		if err != nil {
			return
		}
		p.app <- b
		p.results <- Relay(ctx, st, a)
	}
	p.r = newRig(t, c)
	return p
}

// connect opens an application connection; result is that of the client's relay.
func (p *proxied) connect(t testing.TB) (client, app *net.TCPConn, result chan RelayResult) {
	t.Helper()
	a, b := tcpPair(t)
	st := open(t, p.r.client)
	result = make(chan RelayResult, 1)
	go func() { result <- Relay(context.Background(), st, b) }()
	app = (<-p.app).(*net.TCPConn)
	t.Cleanup(func() { a.Close(); app.Close() })
	return a.(*net.TCPConn), app, result
}

func (p *proxied) gone(t testing.TB) {
	t.Helper()
	eventually(t, "streams gone", func() bool { return p.r.client.Streams() == 0 && p.r.server.Streams() == 0 })
}

func TestRelayHalfClosesInBothDirections(t *testing.T) {
	p := newProxied(t, rigConfig{})
	client, app, result := p.connect(t)
	client.Write([]byte("question"))
	client.CloseWrite()
	got, err := io.ReadAll(app)
	check(t, err)
	if string(got) != "question" {
		t.Fatalf("app read %q", got)
	}
	answer := bytes.Repeat([]byte("answer"), 300_000) // long after the client's FIN
	go func() {
		app.Write(answer)
		app.CloseWrite()
	}()
	got, err = io.ReadAll(client)
	check(t, err)
	if !bytes.Equal(got, answer) {
		t.Fatalf("client read %d bytes, want %d", len(got), len(answer))
	}
	for name, res := range map[string]RelayResult{"client": <-result, "server": <-p.results} {
		if res.Err != nil {
			t.Errorf("%s relay ended with %v", name, res.Err)
		}
	}
	p.gone(t)
}

func TestRelayPassesResetsOn(t *testing.T) {
	p := newProxied(t, rigConfig{})
	for _, side := range []string{"client", "app"} {
		client, app, result := p.connect(t)
		client.Write([]byte("x"))
		io.ReadFull(app, make([]byte, 1))
		from, to := client, app
		if side == "app" {
			from, to = app, client
		}
		from.SetLinger(0)
		from.Close()
		to.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := to.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("reset by %s arrived as %v, want connection reset", side, err)
		}
		if a, b := <-result, <-p.results; a.Err == nil || b.Err == nil {
			t.Errorf("reset by %s: relays ended with %v and %v, want errors", side, a.Err, b.Err)
		}
	}
	p.gone(t)
}

func TestRelayEndsWithItsContext(t *testing.T) {
	r := newRig(t, rigConfig{})
	a, b := tcpPair(t)
	defer a.Close()
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("grace period is over")
	result := make(chan RelayResult, 1)
	st := open(t, r.client)
	go func() { result <- Relay(ctx, st, b) }()
	cancel(why)
	if res := <-result; !errors.Is(res.Err, why) {
		t.Fatalf("relay ended with %v, want %v", res.Err, why)
	}
	a.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("application saw %v, want connection reset", err)
	}
}

func TestRelayJoinsTwoStreams(t *testing.T) {
	back := newRig(t, rigConfig{})
	front := newRig(t, rigConfig{handler: func(ctx context.Context, in *Incoming) {
		next, _, err := back.client.Open(ctx, &Request{Authority: in.Authority})
		if err != nil {
			in.Refuse(503, nil)
			return
		}
		st, err := in.Accept(nil)
		if err != nil {
			next.Reset(8)
			return
		}
		Relay(ctx, st, next)
	}})
	st := open(t, front.client)
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	go func() {
		st.Write(data)
		st.CloseWrite()
	}()
	got, err := io.ReadAll(st)
	check(t, err)
	if !bytes.Equal(got, data) {
		t.Fatalf("got %d bytes, want %d", len(got), len(data))
	}
	st.Close()
	eventually(t, "streams gone", func() bool { return front.client.Streams()+back.client.Streams() == 0 })
}

// TestRelayManyConnections moves random amounts both ways over many connections
// with random half-closes and resets, and compares checksums.
func TestRelayManyConnections(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	p := newProxied(t, rigConfig{})
	var wg sync.WaitGroup
	for i := range 40 {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		client, app, result := p.connect(t)
		up, down := randomBytes(rng), randomBytes(rng)
		reset := rng.IntN(4) == 0
		wg.Go(func() {
			var each sync.WaitGroup
			if reset {
				client.Write(up)
				client.SetLinger(0)
				client.Close()
				io.Copy(io.Discard, app)
				app.Close()
				<-result
				return
			}
			each.Go(func() { sendAll(t, rng, client, up) })
			each.Go(func() { sendAll(t, rand.New(rand.NewPCG(seed+1, uint64(i))), app, down) })
			each.Go(func() { expectAll(t, app, up) })
			each.Go(func() { expectAll(t, client, down) })
			each.Wait()
			if res := <-result; res.Err != nil || res.ToStream != int64(len(up)) || res.ToConn != int64(len(down)) {
				t.Errorf("connection %d: %+v, want %d up and %d down", i, res, len(up), len(down))
			}
		})
	}
	wg.Wait()
	p.gone(t)
}

func randomBytes(rng *rand.Rand) []byte {
	b := make([]byte, rng.IntN(1<<rng.IntN(21)+1))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func sendAll(t testing.TB, rng *rand.Rand, c *net.TCPConn, b []byte) {
	for len(b) > 0 {
		n := min(len(b), 1+rng.IntN(100_000))
		if _, err := c.Write(b[:n]); err != nil {
			t.Errorf("write: %v", err)
			return
		}
		b = b[n:]
	}
	c.CloseWrite()
}

func expectAll(t testing.TB, c *net.TCPConn, want []byte) {
	got, err := io.ReadAll(c)
	if err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
		t.Errorf("read %d bytes, %v; want %d, same checksum", len(got), err, len(want))
	}
}
