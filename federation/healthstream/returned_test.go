package healthstream

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// By Returned a node proxy forgets what it has seen fail itself: only those are in it of
// whom an instance says anew that they are well.
func TestOnlyWhoIsWellWasTakenBack(t *testing.T) {
	const port, sick = 80, mesh.EndpointID(7)
	say := func(live bool, unnamed uint32, xs ...record.Exception) []Delivery {
		return []Delivery{{Gateway: "gw-1", Live: live, Health: map[uint16]record.Health{port: {Ready: 200, Healthy: 1, ReadyCapacity: 200, HealthyCapacity: 1, Exceptions: xs, Unnamed: unnamed}}}}
	}
	out := func(c record.Cause) record.Exception { return record.Exception{Endpoint: sick, Cause: c} }
	var others []record.Exception
	for i := range record.MaxExceptions {
		others = append(others, record.Exception{Endpoint: mesh.EndpointID(100 + i), Cause: record.Witness})
	}
	well := Delivery{Instance: record.Instance{1}, Gateway: "gw-2", Live: true, Health: map[uint16]record.Health{port: {Ready: 200, Healthy: 200, ReadyCapacity: 200, HealthyCapacity: 200}}}
	epoch := time.Now()
	before := knownOf("s", "east", append(say(true, 0, out(record.Witness)), well), Known{}, epoch)
	if n := len(before.Summaries[port].Exceptions); n != 1 {
		t.Fatalf("%d are out at first; want 1", n)
	}
	for name, x := range map[string]struct {
		now  []Delivery
		back bool
	}{
		"terminating":                   {say(true, 0, out(record.Terminating)), false},
		"gone":                          {say(true, 0, out(record.Gone)), false},
		"not ready":                     {say(true, 0, out(record.NotReady)), false},
		"not named beside 64 others":    {say(true, 1, others...), false},
		"its gateway falls silent":      {append(say(false, 0, out(record.Witness)), well), false},
		"its gateway is not known":      {[]Delivery{well}, false},
		"out still":                     {append(say(true, 0, out(record.Witness)), well), false},
		"its gateway leaves out nobody": {append(say(true, 0), well), true},
		"its gateway leaves out others": {append(say(true, 0, others[:3]...), well), true},
		"its gateway says it by itself": {say(true, 0), true},
	} {
		k := knownOf("s", "east", x.now, before, epoch.Add(time.Second))
		if at, back := k.Returned[port][sick]; back != x.back {
			t.Errorf("%s: taken back %t (%v after the beginning); want %t", name, back, at.Sub(epoch), x.back)
		}
	}
}
