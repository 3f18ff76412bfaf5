package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

func delivers(healthy uint32, out ...record.Exception) record.Record {
	return record.HealthRecord(hello, 80, record.Health{Ready: 10, Healthy: healthy, ReadyCapacity: 20, HealthyCapacity: 2 * healthy, Exceptions: out})
}

func exception(id mesh.EndpointID, cause record.Cause) record.Exception {
	return record.Exception{Endpoint: id, Cause: cause}
}

// What one gateway cannot reach takes nothing from its sibling; what a witness
// has told to one of them counts for both.
func TestMergedHealthIsTheBestGatewayWithoutWhatAnyWitnessHasSeen(t *testing.T) {
	for _, c := range []struct {
		name          string
		a, b          record.Record
		healthy, size uint32
		out           []mesh.EndpointID
	}{
		{"a reaches nobody", delivers(0, exception(1, record.Hop), exception(2, record.Hop)), delivers(10), 10, 20, nil},
		{"a has heard a witness first", delivers(9, exception(1, record.Witness)), delivers(10), 9, 18, []mesh.EndpointID{1}},
		{"both have heard", delivers(9, exception(1, record.Witness)), delivers(9, exception(1, record.Witness)), 9, 18, []mesh.EndpointID{1}},
		{"each has heard another", delivers(9, exception(1, record.Witness)), delivers(9, exception(2, record.Witness)), 8, 16, []mesh.EndpointID{1, 2}},
		{"a reaches nobody, and b knows who is sick", delivers(0, exception(1, record.Hop), exception(2, record.Hop)), delivers(9, exception(2, record.Witness)), 9, 18, []mesh.EndpointID{2}},
		{"the best is left out by nobody else's hop", delivers(8, exception(1, record.Hop), exception(2, record.Hop)), delivers(9, exception(3, record.Hop)), 9, 18, []mesh.EndpointID{3}},
	} {
		l := newLedger(epoch)
		a, b := newSpeaker(t, "west", "gw-1"), newSpeaker(t, "west", "gw-2")
		for s, r := range map[*speaker]record.Record{a: c.a, b: c.b} {
			if _, err := l.Offer(s.say(r), epoch); err != nil {
				t.Fatal(err)
			}
		}
		h, ok := l.Health("west", hello, 80)
		var out []mesh.EndpointID
		for _, x := range h.Exceptions {
			out = append(out, x.Endpoint)
		}
		if !ok || h.Healthy != c.healthy || h.HealthyCapacity != c.size || h.Ready != 10 || !slices.Equal(out, c.out) {
			t.Errorf("%s: %d healthy, capacity %d, out %v; want %d, %d, %v", c.name, h.Healthy, h.HealthyCapacity, out, c.healthy, c.size, c.out)
		}
	}
}

// A silent instance's word on witnesses is not added to that of a live one.
func TestTheSilentAddNoWitness(t *testing.T) {
	l := newLedger(epoch)
	a, b := newSpeaker(t, "west", "gw-1"), newSpeaker(t, "west", "gw-2")
	l.Offer(a.say(delivers(9, exception(1, record.Witness))), epoch)
	for n := range 4 {
		now := epoch.Add(time.Duration(n) * 2 * time.Second)
		l.Draw(number, now)
		l.Offer(b.say(delivers(10)), now)
		l.Advance(now)
	}
	l.Advance(epoch.Add(Silence + time.Second))
	if h, _ := l.Health("west", hello, 80); h.Healthy != 10 || len(h.Deliveries) != 1 {
		t.Errorf("got %+v; want the word of the live one alone", h)
	}
}

func TestWordsAndPortsFollowWhatIsHeld(t *testing.T) {
	l := newLedger(epoch)
	s := newSpeaker(t, "west", "gw-1")
	other := record.HealthRecord(hello, 81, record.Health{Ready: 1, Healthy: 1, ReadyCapacity: 1, HealthyCapacity: 1})
	l.Offer(s.say(delivers(10), other, record.NetworkRecord(record.Network{Gateway: "gw-1", Draining: true})), epoch)
	words := l.Words(hello)
	if len(words) != 1 || len(words[0].Entries) != 2 || !words[0].Draining || !words[0].Live || words[0].Network != "west" || words[0].Gateway != "gw-1" || len(l.Ports("west")) != 2 {
		t.Fatalf("got %+v, ports %v", words, l.Ports("west"))
	}
	l.Offer(s.withdraw(other.Key), epoch)
	if words = l.Words(hello); len(words[0].Entries) != 1 || len(l.Ports("west")) != 1 {
		t.Errorf("after a withdrawal: %+v, ports %v", words, l.Ports("west"))
	}
	l.Offer(s.withdraw(delivers(0).Key), epoch)
	if words = l.Words(hello); len(words) != 0 || len(l.Ports("west")) != 0 {
		t.Errorf("after both: %+v, ports %v", words, l.Ports("west"))
	}
}

// As many groups as a network may have instances, each with the greatest capacity.
func TestSumsOfTheGreatestCapacitiesFit32Bits(t *testing.T) {
	var deliveries []Delivery
	for n := range DefaultLimits.Instances {
		h := record.Health{
			Ready: record.MaxEndpoints, Healthy: record.MaxEndpoints, ReadyCapacity: record.MaxCapacity, HealthyCapacity: record.MaxCapacity, Unnamed: record.MaxEndpoints,
		}
		deliveries = append(deliveries, Delivery{Group: fmt.Sprint(n), Health: h})
	}
	h := Merge(deliveries)
	if n := uint64(DefaultLimits.Instances); uint64(h.HealthyCapacity) != n*record.MaxCapacity || uint64(h.ReadyCapacity) != n*record.MaxCapacity || uint64(h.Unnamed) != n*record.MaxEndpoints {
		t.Errorf("%d groups of the greatest capacity come to %d of %d, with %d exceptions", n, h.HealthyCapacity, h.ReadyCapacity, h.Unnamed)
	}
}
