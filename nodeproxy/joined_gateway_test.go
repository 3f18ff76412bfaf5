package nodeproxy

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// answers has something else than a gateway at its address; nil: it takes
// connections and says nothing, as one that was stopped (SIGSTOP).
func (w *distant) answers(addr string, handle func(ctx context.Context, in *hbone.Incoming)) {
	w.lose(addr)
	l, err := w.net.Listen(addr)
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	w.listeners[addr] = l
	w.mu.Unlock()
	w.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w.work.Go(func() {
				if handle == nil {
					<-w.ctx.Done()
					conn.Close()
					return
				}
				t, err := hbone.ServerTLS(w.ctx, conn, w.client.ids.ServerTLS(torturedID("gateway"), nil, "h2"))
				if err == nil {
					hbone.NewServer(t, hbone.DefaultConfig(), handle).Serve(w.ctx)
				}
			})
		}
	})
}

// serving is a gateway that has none but pods.
func (w *distant) serving(pods []*mesh.Workload) func(context.Context, *hbone.Incoming) {
	var turn atomic.Int64
	w.mu.Lock()
	defer w.mu.Unlock()
	gateway := w.newGateway()
	return func(ctx context.Context, in *hbone.Incoming) {
		if in.Header.Get(header.NamePin) == "" {
			in.Header[header.NamePin] = pods[int(turn.Add(1))%len(pods)].Endpoint.String()
		}
		gateway.forward(ctx, in)
	}
}

// What a gateway refuses to a session that several connections wait for is held against
// that gateway, and not against those that the connections would have gone by.
func TestARefusalIsHeldAgainstTheGatewayThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDistant(6, 2, 40*time.Millisecond)
		defer w.end()
		var log bytes.Buffer
		w.client.view.log = zerolog.New(zerolog.SyncWriter(&log))
		w.answers(w.gateways[0].Address.String(), func(ctx context.Context, in *hbone.Incoming) { // gw-1 has lost its way to the pods
			time.Sleep(2 * time.Second)
			in.Refuse(503, hbone.Header{header.NameReason: string(header.ReasonUnreachable)})
		})
		if _, errs := w.crowd(50, 1e6, 100*time.Millisecond); len(errs) > 0 {
			t.Errorf("%d failed: %v", len(errs), errs[0])
		}
		for _, line := range strings.Split(log.String(), "\n") {
			switch {
			case strings.Contains(line, `"ejected"`) && strings.Contains(line, `"gw-2"`):
				t.Errorf("gw-2 has refused nothing, and is out: %s", line)
			case strings.Contains(line, `"readmitted"`) && strings.Contains(line, `"gw-1"`):
				t.Errorf("gw-1 refuses everything, and is in again: %s", line)
			case strings.Contains(line, "dazed: "):
				t.Errorf("gw-2 serves all pods: %s", line)
			}
		}
	})
}

// A connection that has waited for a session which is opened by way of one gateway goes
// by the other when that fails.
func TestAConnectionThatWaitedForAGatewayGoesByTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDistant(6, 2, 40*time.Millisecond)
		defer w.end()
		w.answers(w.gateways[0].Address.String(), nil)
		trips, errs := w.crowd(300, 100, 100*time.Millisecond)
		if len(errs) > 0 {
			t.Errorf("%d failed: %v", len(errs), errs[0])
		}
		late, most := 0, 0.0
		for _, n := range trips {
			d := n * (2 * w.delay).Seconds()
			if most = max(most, d); d > 4 {
				late++
			}
		}
		if late > 0 {
			t.Errorf("%d of %d connections have waited for gw-1, which is stopped, for two handshakes (%v each), one after the other, for %.1f s, while gw-2 served all others", late, len(trips), w.client.cfg.Timeouts.Handshake, most)
		}
	})
}

// logLines is a log that several goroutines write and one reads.
type logLines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Of a burst that waits for a few sessions, each connection is said to go by the gateway
// that it goes by, though it may have been meant for the other.
func TestTheAccessLogNamesTheGatewayThatServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDistant(4, 2, 40*time.Millisecond)
		defer w.end()
		by := map[string]string{}
		for i, g := range w.gateways {
			w.answers(g.Address.String(), w.serving(w.pods[2*i:2*i+2]))
			for _, pod := range w.pods[2*i : 2*i+2] {
				by[pod.UID] = g.Name
			}
		}
		var log logLines
		w.client.log = zerolog.New(&log)
		if _, errs := w.crowd(50, 1e6, 100*time.Millisecond); len(errs) > 0 {
			t.Errorf("%d failed: %v", len(errs), errs[0])
		}
		time.Sleep(time.Second) // until all have ended
		said, wrong := 0, 0
		for _, line := range strings.Split(strings.TrimSpace(log.String()), "\n") {
			var l struct{ Direction, Gateway, Workload string }
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if l.Direction != "outbound" {
				continue
			}
			if said++; l.Gateway != by[l.Workload] {
				wrong++
			}
		}
		if said != 50 || wrong > 0 {
			t.Errorf("%d of %d connections, of 50, name a gateway that does not serve their pod", wrong, said)
		}
	})
}
