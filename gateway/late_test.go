package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/gateway/picker"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/overload"
	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/internal/retrybudget"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// lateGateway is a gateway with one pod; late: its process has done nothing for a while.
func lateGateway(t *testing.T, late bool) (*Gateway, *mesh.Workload) {
	cfg := DefaultConfig()
	cfg.Timeouts.Answer, cfg.Timeouts.Dial = 20*time.Millisecond, time.Nanosecond
	g := &Gateway{cfg: cfg, log: zerolog.New(io.Discard), load: overload.New(prometheus.NewRegistry()), metrics: NewMetrics(prometheus.NewRegistry()),
		budget: retrybudget.New(0, 0), doubts: retrybudget.New(10, 0), inner: newInnerHandshakes(cfg.Limits.Inner, prometheus.NewRegistry())}
	ctx, cancel := context.WithCancel(t.Context())
	w := podAt(1, "127.0.0.1")
	g.backends = newBackends("west", cfg.OutlierDetection, nothingWitnessed, reprobe.New[mesh.EndpointID](ctx, hopSchedule),
		func(context.Context, *mesh.Workload) error { return os.ErrDeadlineExceeded },
		func(mesh.EndpointID) *mesh.Workload { return w }, g.log, func(*mesh.Workload) {})
	g.backends.late = func(time.Time) bool { return true } // probes that time out change no health
	t.Cleanup(func() {
		cancel()
		g.backends.prober.Wait()
	})
	if late {
		ran, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
		g.load.Run(ran)
		stop()
		time.Sleep(200 * time.Millisecond) // nobody measures: the process hangs
	}
	return g, w
}

// Whatever a pod seems to owe while this process was late, it is not blamed for.
func TestWhatTookLongWhileTheGatewayWasLateIsNoPodsFault(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint("late ", late), func(t *testing.T) {
			g, w := lateGateway(t, late)
			f := &forwarding{lease: lease{Choice: picker.Choice{Pod: w}}, replayed: replay{complete: true, sent: time.Now().Add(-g.cfg.Timeouts.Silence)}}
			want := map[bool]health.Outcome{false: health.Failure, true: health.Neutral}[late]
			if got := g.judge(f); got != want {
				t.Errorf("a hello that was not answered: %v, want %v", got, want)
			}
			if err := g.awaitAnswer(t.Context(), f, silent(t)); !isTimeout(err) {
				t.Fatalf("awaitAnswer: %v, want a timeout", err)
			}
			if g.backends.Doubted(w.Endpoint) == late {
				t.Errorf("slow to answer a hello: doubted %v", !late)
			}
			before := g.backends.Hop(w.Endpoint, time.Now()).Health
			x := route.Exported{Service: &mesh.Service{Hostname: "a"}, Members: []*mesh.Workload{w}}
			f = &forwarding{exported: x, to: g.backends.Offer(x, time.Now())}
			if conn := g.dialPods(t.Context(), f); conn != nil || !isTimeout(f.err) {
				t.Fatalf("dialed %v, %v; want a timeout", conn, f.err)
			}
			if now := g.backends.Hop(w.Endpoint, time.Now()).Health; (now == before) != late {
				t.Errorf("a dial that timed out: health from %v to %v", before, now)
			}
		})
	}
}

// A question of our own that is not answered in time ejects a pod, unless we were late,
// or the pod has answered others meanwhile and is only slow.
func TestWhichQuestionsThatTimeOutEjectAPod(t *testing.T) {
	for name, c := range map[string]struct {
		late, heard bool
		err         error
		ejected     bool
	}{
		"silent":                    {false, false, os.ErrDeadlineExceeded, true},
		"while we are late":         {true, false, os.ErrDeadlineExceeded, false},
		"refused while we are late": {true, false, errors.New("connection refused"), true},
		"while it answers others":   {false, true, os.ErrDeadlineExceeded, false},
		"closed while it answers":   {false, true, io.EOF, false},
	} {
		t.Run(name, func(t *testing.T) {
			probing(t, func(l *listing, b *backends) {
				w := podAt(1, "10.1.2.1")
				l.set(w)
				b.late = func(time.Time) bool { return c.late }
				b.ask = func(context.Context, *mesh.Workload) error {
					time.Sleep(time.Second)
					if c.heard {
						b.answered(b.leaseOf(w), time.Now().Add(-time.Millisecond))
					}
					return c.err
				}
				b.doubt(w)
				time.Sleep(time.Minute)
				synctest.Wait()
				if usable := !b.ejected(w.Endpoint); usable == c.ejected {
					t.Errorf("ejected %v, want %v", !usable, c.ejected)
				}
			})
		})
	}
}

func (b *backends) ejected(id mesh.EndpointID) bool {
	return b.Hop(id, time.Now()).Ejections > 0
}

// leaseOf is a connection to w and nobody else.
func (b *backends) leaseOf(w *mesh.Workload) lease {
	x := route.Exported{Service: &mesh.Service{Hostname: w.UID}, Port: mesh.Port{Service: 80, Target: 8080}, Members: []*mesh.Workload{w}}
	l, _ := b.choose(b.Offer(x, time.Now()), picker.Request{}, time.Now())
	return l
}
