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
	begin := func() (Known, returns) {
		r := returns{}
		before := knownOf("s", "east", append(say(true, 0, out(record.Witness)), well), Known{}, r, epoch)
		if n := len(before.Summaries[port].Exceptions); n != 1 {
			t.Fatalf("%d are out at first; want 1", n)
		}
		return before, r
	}
	news := well
	news.Health = map[uint16]record.Health{port: {Ready: 201, Healthy: 201, ReadyCapacity: 201, HealthyCapacity: 201}}
	for name, x := range map[string]struct {
		now  []Delivery
		back bool
	}{
		"terminating":                   {say(true, 0, out(record.Terminating)), false},
		"gone":                          {say(true, 0, out(record.Gone)), false},
		"not ready":                     {say(true, 0, out(record.NotReady)), false},
		"not named beside 64 others":    {say(true, 1, others...), false},
		"not named, and others say all": {append(say(true, 1, others...), news), false},
		"its gateway falls silent":      {append(say(false, 0, out(record.Witness)), well), false},
		"its gateway is not known":      {[]Delivery{well}, false},
		"others say that all are well":  {append(say(false, 0, out(record.Witness)), news), false},
		"out still":                     {append(say(true, 0, out(record.Witness)), well), false},
		"its gateway leaves out nobody": {append(say(true, 0), well), true},
		"its gateway leaves out others": {append(say(true, 0, others[:3]...), well), true},
		"its gateway says it by itself": {say(true, 0), true},
	} {
		before, r := begin()
		k := knownOf("s", "east", x.now, before, r, epoch.Add(time.Second))
		if at, back := k.Returned[port][sick]; back != x.back {
			t.Errorf("%s: taken back %t (%v after the beginning); want %t", name, back, at.Sub(epoch), x.back)
		}
	}
}

// Its gateway falls silent beside a sibling, or its health lapses: who was left out is
// taken back all the same when that gateway says so later, and not before.
func TestWhoWasLeftOutBeforeASilenceIsTakenBackAfterIt(t *testing.T) {
	const port, sick = 80, mesh.EndpointID(7)
	say := func(gateway string, live bool, healthy uint32, xs ...record.Exception) Delivery {
		return Delivery{Instance: record.Instance{gateway[3]}, Gateway: gateway, Live: live, Health: map[uint16]record.Health{port: {Ready: 9, Healthy: healthy, ReadyCapacity: 9, HealthyCapacity: healthy, Exceptions: xs}}}
	}
	out := record.Exception{Endpoint: sick, Cause: record.Witness}
	well := say("gw-2", true, 9)
	for name, silence := range map[string][][]Delivery{
		"beside a sibling":              {{say("gw-1", false, 8, out), well}, {well}},
		"of all, and its health lapses": {{say("gw-1", false, 8, out)}, {{Instance: record.Instance{'1'}, Gateway: "gw-1"}}, nil},
	} {
		r, now := returns{}, time.Now()
		k := knownOf("s", "east", []Delivery{say("gw-1", true, 8, out), well}, Known{}, r, now)
		for _, d := range append(silence, []Delivery{say("gw-1", true, 8, out), well}) {
			now = now.Add(40 * time.Second)
			if k = knownOf("s", "east", d, k, r, now); len(k.Returned[port]) != 0 {
				t.Errorf("%s: %v are taken back while nobody says so", name, k.Returned[port])
			}
		}
		now = now.Add(time.Second)
		if k = knownOf("s", "east", []Delivery{say("gw-1", true, 9), well}, k, r, now); !k.Returned[port][sick].Equal(now) {
			t.Errorf("%s: taken back at %v; want %v", name, k.Returned[port][sick], now)
		}
		if again := (knownOf("s", "east", []Delivery{say("gw-1", true, 9)}, k, r, now.Add(time.Second))); !again.Returned[port][sick].Equal(now) {
			t.Errorf("%s: a sibling ends, and that is news of when it was taken back", name)
		}
	}
	r, now := returns{}, time.Now()
	k := knownOf("s", "east", []Delivery{say("gw-1", true, 8, out), well}, Known{}, r, now)
	k = knownOf("s", "east", []Delivery{well}, k, r, now.Add(time.Minute))
	if k = knownOf("s", "east", []Delivery{say("gw-1", true, 9), well}, k, r, now.Add(2*time.Minute)); k.Returned[port][sick].IsZero() {
		t.Error("its gateway is back after two minutes, and says that all are well: not taken back")
	}
}
