package ledger

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

// A gateway is started again with a group that it did not have. Its process of before
// counts no longer than one of the same group would.
func TestAGatewayThatIsGivenAGroupIsNotCountedTwiceNorForEver(t *testing.T) {
	l := newLedger(epoch)
	before, after := newProcess(t, "east", "gw-1", 0), newProcess(t, "east", "gw-1", 1)
	itself := func(group string) record.Record {
		return record.NetworkRecord(record.Network{Gateway: "gw-1", Group: group, Addresses: []record.Address{{Host: "10.0.0.1", Port: 15008}}})
	}
	offer(t, l, before.say(itself(""), export(80), health(10, 10)), epoch)
	first := true
	for now := epoch.Add(2 * time.Second); now.Sub(epoch) <= 2*time.Hour; now = now.Add(2 * time.Second) {
		if now.Sub(epoch)%(14*time.Second) == 0 {
			l.Draw(number, now)
		}
		if first {
			offer(t, l, after.say(itself("zone-a"), export(80), health(10, 10)), now)
			first = false
		} else if now.Sub(epoch) == 10*time.Minute {
			offer(t, l, after.withdraw(export(80).Key), now)
		} else {
			offer(t, l, after.say(), now)
		}
		if at := now.Sub(epoch); at > Silence+2*time.Second && at <= Silence+4*time.Second || at == 40*time.Second {
			if h, _ := l.Health("east", hello, 80); h.Ready != 10 {
				t.Errorf("%v after the last word of the process of before: %d pods are ready; want the 10 that there are (it is %s)", at, h.Ready, phase(l, before))
			}
		}
	}
	if s, ok := l.Export("east", hello); ok {
		t.Errorf("nearly two hours after the gateway has withdrawn the export it holds, by the word of %d processes: that of before is %s", len(s.Gateways), phase(l, before))
	}
}

// As long as both processes of a gateway that is given a group speak, one counts.
func TestProcessesOfOneGatewayInTwoGroupsCountOnce(t *testing.T) {
	h := record.Health{Ready: 10, Healthy: 10, ReadyCapacity: 10, HealthyCapacity: 10}
	before := Delivery{Instance: record.Instance{9}, Gateway: "gw-1", Draining: true, Live: true, Health: h}
	after := Delivery{Instance: record.Instance{1}, Gateway: "gw-1", Group: "zone-a", Live: true, Health: h}
	other := Delivery{Instance: record.Instance{2}, Gateway: "gw-2", Group: "zone-b", Live: true, Health: h}
	equal := before
	equal.Draining = false
	for name, c := range map[string]struct {
		said []Delivery
		want uint32
	}{
		"the one of before drains":            {[]Delivery{before, after}, 10},
		"told the other way round":            {[]Delivery{after, before}, 10},
		"it does not drain yet":               {[]Delivery{after, equal}, 10},
		"beside a gateway of another group":   {[]Delivery{after, before, other}, 20},
		"two gateways of groups of their own": {[]Delivery{after, other}, 20},
	} {
		if got := Merge(c.said); got.Healthy != c.want || got.HealthyCapacity != c.want {
			t.Errorf("%s: %d are healthy, with a capacity of %d; want %d", name, got.Healthy, got.HealthyCapacity, c.want)
		}
	}
}
