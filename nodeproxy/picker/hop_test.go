package picker

import (
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// What one gateway cannot reach is chosen as often as before by way of the others,
// and by way of that gateway again as soon as it says that it can.
func TestWhatOneGatewayCannotReachConcernsThatGatewayAlone(t *testing.T) {
	s := layout{distribution: "Any", west: 4, gateways: 2}.snapshot(t, 1)
	west := Share{"west", host, 80}
	said := Health{Groups: []Group{{{Gateway: "gw-1", Ready: 4, ReadyCapacity: 4, Healthy: 4, HealthyCapacity: 4},
		{Gateway: "gw-2", Ready: 4, ReadyCapacity: 4, Healthy: 4, HealthyCapacity: 4}}}}
	c := defaults()
	c.Health = func(k Share) (Health, bool) { return said, k == west }
	p := New(c)
	d := resolve(t, p, s, epoch)
	pod := s.Workload("west-00000")
	now := epoch
	kept := holding{p: p, snap: s, now: now}
	// met returns how many of 4000 choices by way of each gateway fell on the pod, or
	// left it to the gateway, and how often that was asked to leave the pod out.
	type count struct{ all, pod, left, avoided int }
	met := func() map[string]count {
		out := map[string]count{}
		for range 4000 {
			c, err := p.Pick(d, Tried{}, &kept, now)
			if err != nil {
				t.Fatal(err)
			}
			n := out[c.Gateway.Name]
			switch n.all++; {
			case c.Kept.Endpoint == pod.Endpoint:
				n.pod++
			case c.Kept.ID == 0:
				n.left++
			}
			if slices.Contains(c.Avoid, pod.Endpoint) {
				n.avoided++
			}
			out[c.Gateway.Name] = n
			p.Opened(&c, now)
			p.Done(&c, Outcome{}, now)
		}
		return out
	}
	even := func(when string, n count) {
		t.Helper()
		if n.left > 0 || n.pod < n.all/5 || n.pod > n.all/3 {
			t.Errorf("%s: %+v; want a quarter of all for the pod", when, n)
		}
	}
	for { // once
		c, err := p.Pick(d, Tried{}, &kept, now)
		if err != nil {
			t.Fatal(err)
		}
		if c.Gateway.Name == "gw-1" && c.Kept.Endpoint == pod.Endpoint {
			p.Done(&c, Outcome{At: AtEndpoint, Endpoint: pod.Endpoint, Hop: true, Fault: true, Responded: true, Reason: "unreachable"}, now)
			break
		}
		p.Done(&c, Outcome{}, now)
	}
	n := met()
	even("by way of gw-2 after gw-1 could not reach it", n["gw-2"])
	if n := n["gw-1"]; n.pod > 0 || n.avoided != n.left {
		t.Errorf("by way of gw-1, which could not reach it: %+v; want it to choose another", n)
	}

	now = now.Add(time.Second)
	kept.now = now
	said.Groups = []Group{{said.Groups[0][0], said.Groups[0][1]}}
	said.Groups[0][0].Unreachable, said.Groups[0][0].Healthy = []mesh.EndpointID{pod.Endpoint}, 3
	p.Heard(west, s, now)
	n = met()
	even("by way of gw-2 after gw-1 has said so", n["gw-2"])
	if n := n["gw-1"]; n.pod > 0 || n.left > 0 {
		t.Errorf("by way of gw-1, which says that it cannot reach it: %+v; want single pods, without this one", n)
	}

	now = now.Add(time.Second)
	kept.now = now
	said.Groups = []Group{{said.Groups[0][1], said.Groups[0][1]}}
	said.Groups[0][0].Gateway = "gw-1"
	p.Heard(west, s, now)
	n = met()
	even("by way of gw-1 after it can reach it again", n["gw-1"])
	even("by way of gw-2 after gw-1 can reach it again", n["gw-2"])
}

// A gateway that is asked for a pod by name refuses what its witness leaves out as it does what it cannot reach. When the pod is
// taken back, or that gateway has reached it, it is chosen by way of that gateway as before, and nobody else is left to it.
func TestWhatAGatewayRefusedAsSickIsChosenWhenItIsTakenBack(t *testing.T) {
	s := layout{distribution: "Any", west: 4, gateways: 1}.snapshot(t, 1)
	west, pod := Share{"west", host, 80}, s.Workload("west-00000")
	for how, back := range map[string]func(*Picker, *Health){
		"its witness has taken it back": func(p *Picker, said *Health) {
			said.Exceptions, said.Returned = nil, map[mesh.EndpointID]time.Time{pod.Endpoint: epoch.Add(2 * time.Second)}
			p.Heard(west, s, epoch.Add(2*time.Second))
		},
		"the gateway has reached it": func(p *Picker, said *Health) {
			said.Exceptions = nil
			p.Heard(west, s, epoch.Add(2*time.Second))
			p.Reached(west, pod.Endpoint, "gw-1")
		},
	} {
		said := Health{Groups: []Group{{{Gateway: "gw-1", Ready: 4, ReadyCapacity: 4, Healthy: 4, HealthyCapacity: 4}}}}
		c := defaults()
		c.Health = func(k Share) (Health, bool) { return said, k == west }
		p := New(c)
		d, kept := resolve(t, p, s, epoch), holding{p: p, snap: s, now: epoch}
		for refused := false; !refused; {
			c, err := p.Pick(d, Tried{}, &kept, epoch)
			if err != nil {
				t.Fatal(err)
			}
			o := Outcome{}
			if refused = c.Kept.Endpoint == pod.Endpoint; refused {
				o = Outcome{At: AtEndpoint, Endpoint: pod.Endpoint, Hop: true, Fault: true, Responded: true, Reason: "pinned_gone"}
			}
			p.Done(&c, o, epoch)
		}
		said.Exceptions = []mesh.EndpointID{pod.Endpoint}
		p.Heard(west, s, epoch.Add(time.Second))
		back(p, &said)
		now, got, left := epoch.Add(3*time.Second), 0, 0
		kept.now = now
		for range 400 {
			c, err := p.Pick(d, Tried{}, &kept, now)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case c.Kept.Endpoint == pod.Endpoint:
				got++
			case c.Kept.ID == 0:
				left++
			}
			p.Opened(&c, now)
			p.Done(&c, Outcome{}, now)
		}
		if got < 80 || left > 0 {
			t.Errorf("%s: it has %d of 400 connections, and %d are left to the gateway; want a quarter, and none", how, got, left)
		}
	}
}

// A pod of another network whose tunnel broke without any answer is doubted on the port
// that was asked for, and on no other.
func TestAPodThatBrokeOnOnePortIsDoubtedOnThatPortAlone(t *testing.T) {
	s := layout{distribution: "Any", west: 4, gateways: 1}.snapshot(t, 1)
	c := defaults()
	c.Health = func(Share) (Health, bool) { return delivers(4, 4), true }
	p := New(c)
	at := map[uint16]*Destination{80: resolve(t, p, s, epoch)}
	f := flow(s)
	f.Port = 81
	var err error
	if at[81], err = p.Resolve(s, f, epoch); err != nil {
		t.Fatal(err)
	}
	kept := &holding{p: p, snap: s, now: epoch}
	broken, err := p.Pick(at[80], Tried{}, kept, epoch)
	if err != nil || broken.Kept.ID == 0 {
		t.Fatalf("chose %+v, %v; want a pod", broken, err)
	}
	p.Done(&broken, Outcome{At: AtEndpoint, Fault: true, Reason: "connect", Endpoint: broken.Kept.Endpoint}, epoch)
	for port, doubted := range map[uint16]bool{80: true, 81: false} {
		met, avoided := false, false
		for range 400 {
			c, err := p.Pick(at[port], Tried{}, kept, epoch.Add(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			met = met || c.Kept.Endpoint == broken.Kept.Endpoint
			avoided = avoided || slices.Contains(c.Avoid, broken.Kept.Endpoint)
			p.Opened(&c, epoch.Add(time.Second))
			p.Done(&c, Outcome{}, epoch.Add(time.Second))
		}
		if met == doubted || avoided != doubted {
			t.Errorf("port %d: chosen %v, to be avoided %v; want it doubted: %v", port, met, avoided, doubted)
		}
	}
}
