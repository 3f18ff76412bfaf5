package scenario

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestShippedScenariosAreValid(t *testing.T) {
	files, err := filepath.Glob("../../examples/drills/*.yaml")
	if err != nil || len(files) < 7 {
		t.Fatalf("found %d scenarios, %v; want at least 7", len(files), err)
	}
	for _, f := range files {
		s, err := Load(f)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if want := strings.TrimSuffix(filepath.Base(f), ".yaml"); s.Name != want {
			t.Errorf("%s: name %q, want %q", f, s.Name, want)
		}
	}
}

func TestDefaultsAreFilledIn(t *testing.T) {
	s := mustParse(t, twoNetworks)
	if got := s.Clients[0].Nodes; got != 2 {
		t.Errorf("clients[0].nodes: got %d, want all 2 of the network", got)
	}
	if p := s.Services[0].Ports; p[0].Target != 8080 || p[1].Target != 9081 {
		t.Errorf("target ports: got %d and %d, want 8080 and 9081", p[0].Target, p[1].Target)
	}
	if n := s.Networks[2]; n.Gateways != 1 || n.Nodes != 1 || n.Capacity != 1 {
		t.Errorf("north: got %+v, want one gateway, one node, capacity 1", n)
	}
	if a := s.Arms[0]; a.OutlierDetection.Scope != "endpoint" || !*a.Federation.Health || a.Retry.Attempts != nil {
		t.Errorf("arm: got %+v, want scope endpoint, health on, the processes' own number of attempts", a)
	}
	if s.Settle != time.Second || s.Traffic.Timeout != 5*time.Second {
		t.Errorf("settle %v, timeout %v; want 1s and 5s", s.Settle, s.Traffic.Timeout)
	}
}

// Each mistake is one replacement in a valid scenario; the error must name the
// line, the field, the value and a remedy.
func TestMistakesNameLineFieldValueAndRemedy(t *testing.T) {
	const assertion = "\nassertions:\n  - {arm: isthmus, metric: failed, bound: '== 0'}\n"
	for _, c := range []struct{ old, new, want string }{
		{"name: small", "name: Small One", `small.yaml:2: name: "Small One": must be 1 to 32 lower-case`},
		{"duration: 12s", "duration: 12", `small.yaml:3: duration`},
		{"duration: 12s", "duration: 1h", `small.yaml:3: duration: 1h0m0s: must be between`},
		{"duration: 12s", "duratoin: 12s", `did you mean "duration"`},
		{"gateways: 1, nodes", "gateways: 9, nodes", `small.yaml:5: networks[0].gateways: 9: must be between 1 and 8`},
		{"{name: north, pods: 2}", "{name: west, pods: 2}", `small.yaml:7: networks[2].name: "west": is given twice`},
		{"port: 8081, targetPort: 9081", "port: 8080", `is given twice`},
		{"port: 8081, targetPort: 9081", "port: 15008", `mesh's own`},
		{"port: 8081, targetPort: 9081", "port: 80", `small.yaml:10: services[0].ports[1].port: 80: is below 1024, where pods do not listen without privileges: give it a targetPort`},
		{"port: 8081, targetPort: 9081", "port: 80, targetPort: 81", `services[0].ports[1].targetPort: 81: must be 1024 to 65535`},
		{"port: 8081, targetPort: 9081", "targetPort: 81", `services[0].ports[1].port: is missing: must be 1 to 65535`},
		{"port: 8081, targetPort: 9081", "port: 80, targetPort: 15006", `services[0].ports[1].targetPort: 15006: is one of the mesh's own`},
		{"name: A, port: 8080", "name: A, port: 9081, targetPort: 8080", `services[0].ports[0].port: 9081: is the target port of B`},
		{"names: [west-2]", "pods: 120 %", `small.yaml:14: faults[0].target.pods: "120 %": want a positive number, a share such as 20 %, or all`},
		{"rate: 50", "rate: 50, abort: 1.2", `traffic.abort: 1.2: must be a share between 0 and 1`},
		{"rate: 50", "rate: 50, abort: some", `traffic.abort: "some": want a share, such as 0.2 or 20 %`},
		{"duration: 12s", "", `small.yaml:2: duration: is missing: must be between`},
		{"port: 8081, targetPort: 9081", "port: 80810", `small.yaml:10`},
		{"clients: [{network: east}]", "clients: [{network: south}]", `small.yaml:11: clients[0].network: "south": is no network of this scenario: use one of east, west, north`},
		{"rate: 50", "rate: 0", `traffic.rate: 0: must be above 0`},
		{"rate: 50", "rate: .nan", `small.yaml:12`},
		{"fraction: 0.1", "fraction: 1.5", `traffic.hold.fraction: 1.5: must be a share`},
		{"kind: refuse", "kind: explode", `small.yaml:14: faults[0].kind: "explode": use one of: refuse, silent, hang, slow, flap, podKill`},
		{"kind: refuse", "kind: gatewayKill", `does not take target.names: use network, gateway`},
		{"kind: refuse", "kind: podKill", `podKill takes every port of a pod`},
		{"at: 4s", "at: 0s", `faults[0].at: 0s: must be at least 1s`},
		{"at: 4s", "at: 40s", `is not before the end`},
		{"until: 8s", "until: 3s", `faults[0].until: 3s: must be after at (4s)`},
		{"names: [west-2]", "names: [west-5]", `"west-5": is no pod of network west: they are called west-1 to west-4`},
		{"names: [west-2]", "pods: 5", `network west has only 4 pods`},
		{"names: [west-2]", "pods: some", `"some": want a positive number, a share such as 20 %, or all`},
		{"names: [west-2], ", "", `is missing: give either pods (a number, a share such as 20 %, or all) or names`},
		{"port: A}}", "port: C}}", `"C": is no port of this scenario`},
		{"arms: [{name: isthmus}]", "arms: [{name: isthmus, retry: {attempts: 101}}]", `arms[0].retry.attempts: 101: must be between 0 and 100`},
		{"arms: [{name: isthmus}]", "arms: [{name: isthmus, outlierDetection: {scope: pod}}]", `use one of: endpoint, networkService, none`},
		{"arms: [{name: isthmus}]", "arms: []", `give at least one arm`},
		{"arm: isthmus", "arm: blind", `assertions[0].arm: "blind": is no arm`},
		{"metric: failed", "metric: sadness", `assertions[0].metric: "sadness": is no metric: use one of aborted, answered_per_second`},
		{"metric: failed", "metric: failed(phase=never)", `phase=never: the scenario has none of that name`},
		{"metric: failed", "metric: cut(port=A)", `cut does not take the selector port: it takes none`},
		{"metric: failed", "metric: share", `share needs the selector network`},
		{"metric: failed", "metric: latency_ms(q=p33)", `q=p33: use one of p50`},
		{"metric: failed", "metric: failed(phase", `misses the closing parenthesis`},
		{"'== 0'", "'about 0'", `assertions[0].bound: "about 0": write an operator`},
		{"'== 0'", "'< many'", `write a number after the operator`},
	} {
		text := strings.Replace(twoNetworks+assertion, c.old, c.new, 1)
		if text == twoNetworks+assertion {
			t.Fatalf("%q is not in the scenario", c.old)
		}
		_, err := Parse("small.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\n got: %v\nwant: %s", c.new, err, c.want)
		}
	}
}

func TestFaultsMayNotMeetOnOneVictim(t *testing.T) {
	second := func(f string) string {
		return strings.Replace(twoNetworks, "arms:", "  - "+f+"\narms:", 1)
	}
	for f, bad := range map[string]bool{
		"{name: b, kind: hang, at: 6s, until: 9s, target: {network: west, names: [west-2], port: A}}": true,
		"{name: b, kind: hang, at: 6s, until: 9s, target: {network: west, names: [west-2], port: B}}": false,
		"{name: b, kind: hang, at: 6s, until: 9s, target: {network: west, names: [west-3], port: A}}": false,
		"{name: b, kind: podKill, at: 6s, until: 9s, target: {network: west, names: [west-2]}}":       true,
		"{name: b, kind: podKill, at: 8s, until: 9s, target: {network: west, names: [west-2]}}":       false,
		"{name: b, kind: refuse, at: 6s, until: 9s, target: {network: west, pods: all}}":              true,
		"{name: sick, kind: gatewayKill, at: 6s, target: {network: west, gateway: 1}}":                true, // the name
		"{name: b, kind: federationCut, at: 2s, until: 9s}":                                           false,
	} {
		_, err := Parse("small.yaml", []byte(second(f)))
		if (err != nil) != bad {
			t.Errorf("%s: got %v, want an error: %v", f, err, bad)
		}
	}
}

func TestScheduleIsTheSameForTheSameSeed(t *testing.T) {
	s := mustParse(t, twoNetworks)
	a, b := Schedule(s, 2), Schedule(s, 2)
	if !reflect.DeepEqual(a, b) {
		t.Error("two schedules of one seed differ")
	}
	s.Seed++
	if reflect.DeepEqual(a, Schedule(s, 2)) {
		t.Error("schedules of two seeds are the same")
	}
}

func TestScheduleKeepsRateOrderAndTurns(t *testing.T) {
	for _, arrivals := range []string{"poisson", "uniform"} {
		for seed := range uint64(20) {
			s := mustParse(t, twoNetworks)
			s.Seed, s.Traffic.Arrivals = seed, arrivals
			list := Schedule(s, 2)
			if n := len(list); n < 500 || n > 700 { // 50/s for 12 s: 600, sd 24.5
				t.Errorf("%s, seed %d: %d arrivals, want about 600", arrivals, seed, n)
			}
			count := map[[2]int]int{}
			for i, a := range list {
				if i > 0 && a.At < list[i-1].At || a.At >= s.Duration || a.At+a.Hold > s.Duration {
					t.Fatalf("%s, seed %d: arrival %d at %v for %v, after %v, of %v", arrivals, seed, i, a.At, a.Hold, list[max(0, i-1)].At, s.Duration)
				}
				count[[2]int{a.Client, a.Port}]++
			}
			for k, n := range count {
				if want := len(list) / 4; n < want || n > want+1 {
					t.Errorf("%s, seed %d: client and port %v got %d arrivals, want %d", arrivals, seed, k, n, want)
				}
			}
		}
	}
}

func TestVictimsFollowTheSeedAndStayWithinTheTarget(t *testing.T) {
	s := mustParse(t, strings.Replace(twoNetworks, "names: [west-2]", "pods: 2", 1))
	seen := map[string]bool{}
	for seed := range uint64(40) {
		s.Seed = seed
		v, w := NewLayout(s, 7).VictimsOf(0), NewLayout(s, 8).VictimsOf(0)
		if !reflect.DeepEqual(v, w) {
			t.Errorf("seed %d: victims %v and %v differ", seed, v, w)
		}
		if len(v.Pods) != 2 || !reflect.DeepEqual(v.Ports, []uint16{8080}) {
			t.Errorf("seed %d: got %v, want two pods and port 8080", seed, v)
		}
		for _, p := range v.Pods {
			seen[p] = true
		}
	}
	if len(seen) != 4 {
		t.Errorf("40 seeds chose only %v", seen)
	}
}

func TestLayoutGivesEveryListenerItsOwnAddress(t *testing.T) {
	s := mustParse(t, twoNetworks)
	s.Networks[1].Pods, s.Networks[1].Gateways = 200, 8
	l := NewLayout(s, 50)
	seen := map[string]string{}
	add := func(who, addr string) {
		if was := seen[addr]; was != "" {
			t.Errorf("%s and %s share %s", was, who, addr)
		}
		seen[addr] = who
	}
	for _, g := range l.Gateways {
		add(g.Name, g.Address.String())
		add(g.Name, g.Admin.String())
	}
	for _, n := range l.Nodes {
		add(n.Name, n.Admin.String())
	}
	for _, p := range l.Pods {
		add(p.Name, p.Address.String()+":15008")
	}
	for _, c := range l.Clients {
		add(c.Name, c.Address.String()+":15008")
		for _, a := range c.Listen {
			add(c.Name, a.String())
		}
	}
	for _, r := range l.Relays {
		add(r.From+" to "+r.To, r.Listen.String())
	}
	if want := 2 * (1 + 8 + 1); len(l.Relays) != want {
		t.Errorf("%d relays, want %d: every gateway seen from the two other networks", len(l.Relays), want)
	}
}

// Every try of a drill is another /16, none of them among the addresses of tests that run
// beside it (internal/meshtest).
func TestDrillsDrawAddressesBelowThoseOfTests(t *testing.T) {
	for pid := range 1000 {
		drawn := map[byte]bool{}
		for try := range 32 {
			b := SecondByte(uint64(pid%7), pid, try)
			if b < 1 || b > 129 || drawn[b] {
				t.Fatalf("process %d draws 127.%d.0.0/16 at try %d; want 127.1.0.0/16 to 127.129.0.0/16, each once", pid, b, try)
			}
			drawn[b] = true
		}
	}
}
