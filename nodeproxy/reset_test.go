package nodeproxy_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// delayed copies with a constant delay, as a long path does, half-closes included.
func delayed(dst, src *net.TCPConn, d time.Duration) {
	type piece struct {
		b   []byte
		due time.Time
	}
	way := make(chan piece, 10000)
	var writing sync.WaitGroup
	writing.Go(func() {
		for p := range way {
			time.Sleep(time.Until(p.due))
			dst.Write(p.b)
		}
		dst.CloseWrite()
	})
	for {
		b := make([]byte, 64<<10)
		n, err := src.Read(b)
		if n > 0 {
			way <- piece{b[:n], time.Now().Add(d)}
		}
		if err != nil {
			close(way)
			writing.Wait()
			return
		}
	}
}

// ends is how the far applications' uploads ended.
type ends struct {
	mu      sync.Mutex
	started int
	clean   []string // what was read before an orderly end
	resets  int
}

func (e *ends) serve(c *net.TCPConn) {
	e.mu.Lock()
	e.started++
	e.mu.Unlock()
	b, err := io.ReadAll(c)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.clean = append(e.clean, fmt.Sprintf("%d bytes %.20q", len(b), b))
	} else {
		e.resets++
	}
}

// count is how many uploads have begun.
func (e *ends) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.started
}

// longWay is a pair whose gateway is 50 ms away, so that there is time to reset a
// connection while its tunnel opens.
func longWay(t *testing.T, pods int, each func(*nodeproxy.Config)) (*pair, *ends) {
	p := newPair(t, pods)
	p.EachNode = each
	e := &ends{}
	for _, pod := range p.pods {
		pod.Serve(8080, e.serve)
	}
	p.Write()
	behind := netip.AddrPortFrom(p.Addr(), meshtest.HBONEPort)
	p.Serve(p.GatewayAt("west", "gw-1"), func(a *net.TCPConn) {
		c, err := net.Dial("tcp4", behind.String())
		if err != nil {
			return
		}
		b := c.(*net.TCPConn)
		defer b.Close()
		var both sync.WaitGroup
		both.Go(func() { delayed(b, a, 25*time.Millisecond) })
		delayed(a, b, 25*time.Millisecond)
		both.Wait()
	})
	p.StartGateway("west", "gw-1", func(c *gateway.Config) { c.Listen = behind })
	p.Start()
	p.Process("gateway west/gw-1").AwaitReady(t)
	return p, e
}

// reset opens a connection, sends half a request on it and resets it later.
func reset(t *testing.T, dial func() (*net.TCPConn, error), request []byte, after time.Duration) {
	t.Helper()
	c, err := dial()
	if err != nil {
		t.Error(err)
		return
	}
	c.SetLinger(0)
	defer c.Close()
	go c.Write(request)
	time.Sleep(after)
}

// askSocks asks for hello and does not wait for the reply.
func askSocks(at netip.AddrPort) (*net.TCPConn, error) {
	c, err := meshtest.Dial(at)
	if err != nil {
		return nil, err
	}
	const host = "hello.default.svc.cluster.local"
	_, err = c.Write(append(append([]byte{5, 1, 0, 5, 1, 0, 3, byte(len(host))}, host...), 0, 80))
	return c, err
}

// leaveSocks resets its connection when its greeting was answered.
func leaveSocks(t *testing.T, at netip.AddrPort) {
	t.Helper()
	c, err := meshtest.Dial(at)
	if err != nil {
		t.Fatal(err)
	}
	c.SetLinger(0)
	defer c.Close()
	var answer [2]byte
	if _, err := c.Write([]byte{5, 1, 0}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		t.Fatal(err)
	}
}

// A reset at any moment is a reset at the far end, or nothing at all: an
// application that reads an end takes what came before for complete.
func TestAResetNeverArrivesAsAnEnd(t *testing.T) {
	early := func(c *nodeproxy.Config) {}
	late := func(c *nodeproxy.Config) { c.Retry.Early = false }
	for _, c := range []struct {
		name    string
		each    func(*nodeproxy.Config)
		socks   bool
		request []byte
	}{
		{"early data", early, false, []byte("pay 100 to b")},
		{"nothing said", early, false, nil},
		{"more than is held", early, false, bytes.Repeat([]byte("pay 100 to b "), 3000)},
		{"no early data", late, false, []byte("pay 100 to b")},
		{"through SOCKS", early, true, []byte("pay 100 to b")},
		{"through SOCKS, nothing said", early, true, nil},
		{"through SOCKS, more than is held", early, true, bytes.Repeat([]byte("pay 100 to b "), 3000)},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, e := longWay(t, 1, c.each)
			dial := func() (*net.TCPConn, error) { return meshtest.Dial(p.listen.hello) }
			if c.socks {
				dial = func() (*net.TCPConn, error) { return askSocks(p.shop.Socks) }
			}
			rng := rand.New(rand.NewPCG(1, 2))
			reset(t, dial, []byte("warm"), 600*time.Millisecond)
			opened := 1
			for limit := 160; e.count() < 4 && limit <= 160<<5; limit *= 2 { // more on a machine that is slower than the path is long
				var all sync.WaitGroup
				for range 3 { // beside each other, each at its own moments
					moments := rand.New(rand.NewPCG(rng.Uint64(), 0))
					all.Go(func() {
						for range 4 {
							reset(t, dial, c.request, time.Duration(moments.IntN(limit))*time.Millisecond)
						}
					})
				}
				all.Wait()
				opened += 12
			}
			if c.socks { // one that leaves before it has said where to
				leaveSocks(t, p.shop.Socks)
				opened++
			}
			// Of a client that has left before its request was read nobody knows where it
			// wanted to go: one line says so, and it has no line of a connection.
			log := p.client().Log
			meshtest.Eventually(t, "each connection has one line, and has ended", func() bool {
				e.mu.Lock()
				defer e.mu.Unlock()
				return e.started == e.resets+len(e.clean) && len(log.Find("connection", "direction", "outbound"))+len(log.Find("bad SOCKS request")) == opened
			})
			if bad := log.Find("bad SOCKS request"); c.socks == (len(bad) == 0) {
				t.Errorf("SOCKS requests that could not be read: %v", bad)
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			if len(e.clean) > 0 {
				t.Errorf("%d of %d reset connections ended as if they were complete: %v", len(e.clean), e.started, e.clean)
			}
			if e.started < 4 {
				t.Errorf("only %d of %d connections reached the application: nothing was tried", e.started, opened)
			}
			for _, l := range p.client().Log.Find("outlier changed") {
				t.Errorf("a client that left moved somebody's health: %v", l)
			}
		})
	}
}

// The application resets while its connection is repeated elsewhere.
func TestAResetDuringRepeatsNeverArrivesAsAnEnd(t *testing.T) {
	p := newPair(t, 2)
	blind(p.Mesh)
	p.EachNode = func(c *nodeproxy.Config) {
		c.Federation.Health = false
		c.OutlierDetection.Mode = health.ModeOff
	}
	e := &ends{}
	sick := p.pods[0].App(8080)
	p.pods[1].Serve(8080, e.serve)
	p.Start()
	if err := sick.Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	const n = 60
	limit := 8 * time.Millisecond
	for range n {
		reset(t, func() (*net.TCPConn, error) { return meshtest.Dial(p.listen.hello) }, []byte("pay 100 to b"), time.Duration(rng.Int64N(int64(limit))))
		e.mu.Lock()
		if e.started == 0 { // too early on this machine to have come anywhere
			limit += limit / 4
		}
		e.mu.Unlock()
	}
	meshtest.Eventually(t, "every connection has ended", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.started == e.resets+len(e.clean) && outboundClosed(t, p.client()) == n
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.clean) > 0 || e.started == 0 {
		t.Errorf("%d of %d connections ended as if they were complete: %v", len(e.clean), e.started, e.clean)
	}
}

// A connection that nobody waits for any more is given up, also while a gateway
// that says nothing holds its attempt, and though more was sent than is held.
func TestWhatNobodyWaitsForIsGivenUp(t *testing.T) {
	p := newPair(t, 1)
	p.EachNode = func(c *nodeproxy.Config) {
		c.Timeouts.Dial, c.Timeouts.Handshake, c.Timeouts.Connect = time.Hour, time.Hour, time.Hour
		c.Retry.Deadline = time.Hour
	}
	p.Write()
	p.Serve(p.GatewayAt("west", "gw-1"), func(c *net.TCPConn) { io.Copy(io.Discard, c) }) // never says a word
	p.StartNode("east", "east-1").AwaitReady(t)
	reset(t, func() (*net.TCPConn, error) { return meshtest.Dial(p.listen.hello) }, make([]byte, 64<<10), 100*time.Millisecond)
	line := p.client().Log.Await(t, "connection", "direction", "outbound", "result", "cancelled")
	if n := line.Text("attempts"); n != "1" {
		t.Errorf("%s attempts for an application that is gone", n)
	}
}

// outboundClosed is how many outbound connections have ended, by the metric: the log may
// suppress lines about failures.
func outboundClosed(t *testing.T, p *meshtest.Process) (n int) {
	t.Helper()
	_, body := p.Get(t, "/metrics")
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, `isthmus_connections_closed_total{reporter="source"`) {
			value, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			n += int(value)
		}
	}
	return n
}
