package nodeproxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// warm opens connections until each of p's pods has answered some: then a
// session with each is kept.
func warm(t *testing.T, p *pair) {
	t.Helper()
	seen := map[string]bool{}
	for range 20 * len(p.pods) {
		got, err := meshtest.Hello(p.listen.hello)
		if err != nil {
			t.Fatal(err)
		}
		seen[got] = true
	}
	if len(seen) != len(p.pods) {
		t.Fatalf("only %d of %d pods answered", len(seen), len(p.pods))
	}
}

func TestWhatWasSaidEarlyIsSaidAgainElsewhereAfterARefusal(t *testing.T) {
	p := newPair(t, 2)
	blind(p.Mesh)
	p.EachNode = func(c *nodeproxy.Config) { // chooses pods, and judges nobody
		c.Federation.Health = false
		c.OutlierDetection.Mode = health.ModeOff
	}
	sick := p.pods[0].App(8080)
	p.pods[1].App(8080)
	p.Start()
	warm(t, p)
	if err := sick.Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if got, err := meshtest.Hello(p.listen.hello); err != nil || got != "hello-2" {
			t.Fatalf("connection %d: answered by %q, %v; want hello-2", i, got, err)
		}
	}
	p.client().Log.Await(t, "attempt failed", "reason", "refused", "endpoint", p.pods[0].Endpoint())
}

// An application that says more than is held must get all of it through, in
// order, and one that speaks long after the connect too.
func TestEarlyBytesAreNeitherLostNorDoubled(t *testing.T) {
	p := newPair(t, 2)
	for _, pod := range p.pods {
		pod.Serve(8080, func(c *net.TCPConn) { io.Copy(c, c) })
	}
	p.Start()
	for i, size := range []int{0, 1, 16<<10 - 1, 16 << 10, 16<<10 + 1, 100 << 10, 3 << 20, 1, 40 << 10} {
		sent := bytes.Repeat(fmt.Appendf(nil, "%d of %d|", i, size), size/8+1)[:size]
		c, err := meshtest.Dial(p.listen.hello)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			c.Write(sent)
			c.CloseWrite()
		}()
		if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes: %d came back, the same %v, %v", size, len(got), bytes.Equal(got, sent), err)
		}
		c.Close()
	}
	quiet(t, p)
}

func TestWhatMayHaveBeenDeliveredIsNotSaidTwice(t *testing.T) {
	for _, early := range []bool{true, false} {
		t.Run(fmt.Sprint("early ", early), func(t *testing.T) {
			w := newWired(t, 1)
			w.EachNode = func(c *nodeproxy.Config) { c.Retry.Early = early }
			var mu sync.Mutex
			said := map[string]int{}
			var strike atomic.Bool
			w.pods[0].Serve(8080, func(c *net.TCPConn) {
				line := make([]byte, 64)
				n, _ := c.Read(line)
				mu.Lock()
				said[strings.TrimSpace(string(line[:n]))]++
				mu.Unlock()
				if strike.Load() {
					w.wires["gw-1"].Cut()
					w.wires["gw-2"].Cut()
					return
				}
				io.WriteString(c, "yes\n")
			})
			w.start(t)
			ask := func(what string) error {
				c, err := meshtest.Dial(w.listen.hello)
				if err != nil {
					return err
				}
				defer c.Close()
				io.WriteString(c, what+"\n")
				_, err = io.ReadFull(c, make([]byte, 4))
				return err
			}
			for i := range 6 {
				if err := ask(fmt.Sprint("before ", i)); err != nil {
					t.Fatal(err)
				}
			}
			strike.Store(true)
			if err := ask("pay"); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
				t.Errorf("the client reads %v; want a broken connection", err)
			}
			mu.Lock()
			defer mu.Unlock()
			if said["pay"] != 1 {
				t.Errorf("the application was told %d times; want once (%v)", said["pay"], said)
			}
		})
	}
}

func TestKeptSessionsSpreadLoadOverPodsAndGateways(t *testing.T) {
	w := newWired(t, 4)
	for _, pod := range w.pods {
		pod.App(8080)
	}
	w.start(t)
	answered := map[string]int{}
	const n = 400
	for range n {
		got, err := meshtest.Hello(w.listen.hello)
		if err != nil {
			t.Fatal(err)
		}
		answered[got]++
	}
	for _, pod := range w.pods {
		if got := answered[pod.Name]; got < n/4*85/100 || got > n/4*115/100 {
			t.Errorf("%s answered %d of %d; want a quarter, within 15 %%", pod.Name, got, n)
		}
	}
	opened := 0.0
	for name := range w.wires {
		of := w.gateway(name).Metric(t, "isthmus_tunnels_opened_total")
		if of == 0 {
			t.Errorf("nothing went through %s", name)
		}
		opened += of
	}
	if opened > 16 { // one that a busy machine makes silent for a while gets another beside it
		t.Errorf("%v streams at the gateways for %d connections; want one per pod and gateway, and hardly more", opened, n)
	}
}

// A gateway that refuses the pin is not the end: another pod is asked for.
func TestAPodThatTheGatewayHoldsBackIsReplaced(t *testing.T) {
	p := newPair(t, 2)
	p.EachNode = func(c *nodeproxy.Config) { c.Federation.Health = false } // it does not hear what the gateway knows
	p.EachGateway = func(c *gateway.Config) { c.Federation.Health = false }
	for _, pod := range p.pods {
		pod.App(8080)
	}
	p.Start()
	warm(t, p)
	p.node(1).Stop(t) // its pod's address answers no more
	for i := range 20 {
		if got, err := meshtest.Hello(p.listen.hello); err != nil || got != "hello-2" {
			t.Fatalf("connection %d: answered by %q, %v; want hello-2", i, got, err)
		}
	}
}
