package kubernetes

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/measure"
)

// What the flagship drill (examples/drills/partial-failure.yaml) is held to on a quiet
// machine. News crosses fewer processes than a connection does: node proxy, gateway, and for
// clients one gateway and node proxy more. So where the machine is busy and connections to
// pods that are well take longer than this (median, and 99th percentile), news may take as
// long as they do, and no longer.
const (
	excludeWithin = 5 * time.Millisecond  // median
	knownWithin   = 20 * time.Millisecond // worst
)

// within is the bound of a machine on which connections took so long.
func within(quiet time.Duration, took []time.Duration, quantile float64) time.Duration {
	slices.Sort(took)
	return max(quiet, took[int(quantile*float64(len(took)-1))])
}

// events returns what the processes of the hosts have logged since zero, in the order of
// time.
func (w *world) events(zero time.Time, hosts ...string) (out []measure.Event) {
	w.t.Helper()
	for _, h := range hosts {
		b, err := os.ReadFile(filepath.Join(w.Dir, h+".log"))
		w.must(err)
		for line := range bytes.Lines(b) {
			if e, ok := measure.ParseLine(h, bytes.TrimSpace(line), zero); ok && e.At >= 0 {
				out = append(out, e)
			}
		}
	}
	slices.SortFunc(out, func(a, b measure.Event) int { return int(a.At - b.At) })
	return out
}

// news is how long after a pod's first failed connection its gateways left it out, and
// the node proxies of clients knew.
func (s *shop) news(zero time.Time, p *demoPod, port uint16) (excluded, known []time.Duration) {
	var hosts, gateways, clients []string
	for _, g := range s.west.gateways {
		gateways = append(gateways, g.Host)
	}
	for _, n := range s.east.nodes {
		clients = append(clients, n.name)
	}
	for _, n := range s.west.nodes {
		hosts = append(hosts, n.name)
	}
	events := s.events(zero, slices.Concat(hosts, gateways, clients)...)
	first := slices.IndexFunc(events, func(e measure.Event) bool { return e.AppFailed() && e.Target == port && e.Workload == p.uid })
	if first < 0 {
		s.t.Fatalf("no connection failed at %s", p.name)
	}
	if events[first].Result == "timeout" { // the second one in a row, whenever that ends, ejects
		first = slices.IndexFunc(events, func(e measure.Event) bool {
			return e.Kind == measure.OutlierChanged && e.Source == "witness" && e.Workload == p.uid && e.Port == port
		})
	}
	at := events[max(first, 0)].At
	endpoint := ""
	after := func(process string, match func(measure.Event) bool) time.Duration {
		for _, e := range events {
			if e.Process == process && e.At >= at-5*time.Millisecond && match(e) {
				return max(0, e.At-at)
			}
		}
		return math.MaxInt64
	}
	s.t.Cleanup(func() {
		if !s.t.Failed() {
			return
		}
		for _, e := range events {
			if e.Workload == p.uid && (e.Result != "ok" || e.Kind == measure.OutlierChanged) || e.Kind == measure.Known {
				s.t.Logf("%s: %s %s %+v", p.name, e.At, e.Process, e)
			}
		}
	})
	for _, g := range gateways {
		excluded = append(excluded, after(g, func(e measure.Event) bool {
			if e.Kind != measure.OutlierChanged || e.Edge != "ejected" || e.Workload != p.uid || e.Port != port {
				return false
			}
			endpoint = e.Endpoint
			return true
		}))
	}
	for _, c := range clients {
		known = append(known, after(c, func(e measure.Event) bool {
			return e.Kind == measure.Known && e.Network == "west" && e.Port == port && slices.Contains(e.Exceptions, endpoint)
		}))
	}
	return excluded, known
}

func TestSickPodsOfARealCluster(t *testing.T) {
	s := openShop(t, 2, 10, "", 8080, 8081)
	var excluded, known, beside []time.Duration // of all strikes; beside: what connections took meanwhile
	for i, fault := range []string{"refuse", "hang", "reset", "refuse", "refuse"} {
		t.Run(fault, func(t *testing.T) {
			zero := time.Now()
			var loads []*traffic
			for _, c := range []*demoPod{s.client, s.other} {
				loads = append(loads, c.start(hello, 20*time.Millisecond), c.start(strings.Replace(hello, "8080", "8081", 1), 20*time.Millisecond))
			}
			eventually(t, 20*time.Second, "every pod has answered", func() bool {
				seen := map[string]bool{}
				for _, a := range slices.Concat(loads[0].since(zero), loads[2].since(zero)) {
					seen[a.pod] = true
				}
				return len(seen) == len(s.servers)
			})
			sick := s.servers[2*i:][:2] // others each time: of one port gateways log an edge once in 10 s
			began := time.Now()
			for _, p := range sick {
				p.fall(t, fault, 8080)
			}
			// The bound holds one second into the fault, or one after a hanging connect has timed out.
			settled := began.Add(time.Second)
			if fault == "hang" {
				settled = began.Add(6 * time.Second)
			}
			eventually(t, 30*time.Second, "the fault has lasted", func() bool { return time.Since(settled) > 3*time.Second })
			for _, p := range sick {
				p.heal(t, 8080)
			}
			healed := time.Now()
			took := eventually(t, 20*time.Second, "the healed pods answer again", func() bool {
				return loads[0].answered(sick[0], healed)+loads[2].answered(sick[0], healed) > 0 && loads[0].answered(sick[1], healed)+loads[2].answered(sick[1], healed) > 0
			})
			t.Logf("healed → both answer again: %v", took.Round(time.Millisecond))
			var all []attempt
			for _, l := range loads {
				all = append(all, l.Stop()...)
			}
			if fault == "reset" {
				// What an application accepts and then resets is its own word, and cannot be
				// repeated; and a port that accepts answers its probes.
				n := len(all)
				all = slices.DeleteFunc(all, func(a attempt) bool { return errors.Is(a.err, syscall.ECONNRESET) })
				t.Logf("%d of %d connections were reset by the application that had accepted them", n-len(all), n)
				if n-len(all) > n/50 {
					t.Errorf("%d of %d connections were reset by 2 of 10 pods, want at most 2 %%", n-len(all), n)
				}
			}
			flawless(t, all)
			if fault == "reset" {
				return
			}
			for _, p := range sick {
				e, k := s.news(zero, p, 8080)
				t.Logf("%s: left out by the gateways %v, known to the clients %v after the first connection that failed", p.name, e, k)
				excluded, known = append(excluded, e...), append(known, k...)
			}
			for _, l := range []*traffic{loads[1], loads[3]} { // port 8081 of every pod is well
				for _, a := range l.attempts {
					if a.began.After(began) && a.ended.Before(healed) {
						beside = append(beside, a.ended.Sub(a.began))
					}
				}
			}
			if port := s.portB(loads, sick, began, healed); port == 0 {
				t.Error("the sick pods got no connection on their other port meanwhile")
			}
		})
	}
	if len(excluded) == 0 || len(beside) == 0 {
		t.Fatal("no strike was measured")
	}
	slices.Sort(excluded)
	slices.Sort(known)
	median, worst := excluded[len(excluded)/2], known[len(known)-1]
	excludeBound, knownBound := within(excludeWithin, beside, 0.5), within(knownWithin, beside, 0.99)
	t.Logf("of %d, left out by the gateways (median) %v, known to the clients (worst) %v, after the first connection that failed; connections beside it took %v (median), %v (99 %%)", len(excluded), median, worst, beside[len(beside)/2], beside[len(beside)*99/100])
	if median >= excludeBound || worst >= knownBound {
		t.Errorf("left out after %v (median), known after %v (worst), want less than %v and %v: %v %v", median, worst, excludeBound, knownBound, excluded, known)
	}
}

// portB is how many connections the sick pods answered on their other port during the
// fault.
func (s *shop) portB(loads []*traffic, sick []*demoPod, from, to time.Time) (n int) {
	for _, l := range []*traffic{loads[1], loads[3]} {
		for _, a := range l.attempts {
			if a.began.After(from) && a.ended.Before(to) && slices.ContainsFunc(sick, func(p *demoPod) bool { return p.name == a.pod }) {
				n++
			}
		}
	}
	return n
}
