package peer

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
)

const service = "shop.default.svc.cluster.local"

// remote is a summary of another network, as if east's gateway had sent it.
func remote(sequence uint64, name string, healthy uint32) federation.Record {
	return federation.Record{
		Network: "east", Origin: federation.Origin{Name: "east/gw-1", Incarnation: 1}, Sequence: sequence,
		Summary: &federation.SummaryFact{Service: name, Port: 80, Ready: 10, Healthy: healthy, ReadyCapacity: 10, HealthyCapacity: healthy},
	}
}

func woken(s *Subscription) bool {
	select {
	case <-s.C():
		return true
	default:
		return false
	}
}

func TestSubscriptionCoalesces(t *testing.T) {
	l := NewLedger(0)
	sub := l.OnChange()
	for i := range uint64(10) {
		l.Merge(remote(i+1, "a", uint32(i%2)))
		l.Merge(remote(i+1, "b", 1))
	}
	if !woken(sub) {
		t.Fatal("not woken")
	}
	if woken(sub) {
		t.Error("woken twice")
	}
	if subjects, all := sub.Take(); len(subjects) != 2 || all {
		t.Errorf("got %v, all %v; want two subjects", subjects, all)
	}
	l.Merge(remote(11, "b", 1))
	l.Merge(remote(11, "b", 1))
	l.Merge(remote(1, "b", 0))
	if subjects, all := sub.Take(); woken(sub) || len(subjects) != 0 || all {
		t.Errorf("a refresh, a duplicate and an older record: got %v, %v", subjects, all)
	}
	next := remote(1, "b", 1)
	next.Origin.Incarnation = 2
	l.Merge(next)
	if _, all := sub.Take(); !woken(sub) || !all {
		t.Error("a new incarnation may change everything: want all")
	}
	sub.Close()
	l.Merge(remote(99, "b", 7))
	if woken(sub) {
		t.Error("woken after Close")
	}
}

func TestSubscriptionIsBounded(t *testing.T) {
	l := NewLedger(0)
	sub := l.OnChange()
	for i := range maxPending + 10 {
		l.Merge(remote(uint64(i+1), fmt.Sprint("s", i), 1))
	}
	if n := len(sub.facts); n > maxPending {
		t.Errorf("remembers %d subjects, want at most %d", n, maxPending)
	}
	if subjects, all := sub.Take(); !all || subjects != nil {
		t.Errorf("got %d subjects, all %v; want all", len(subjects), all)
	}
}

func TestLedgerFadesToUnknown(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLedger(time.Minute)
	l.now = func() time.Time { return now }
	l.Merge(remote(1, service, 0))
	sub := l.OnChange()
	now = now.Add(30 * time.Second)
	if fact, age, ok := l.Summary("east", service, 80); !ok || fact.Healthy != 0 || age != 30*time.Second {
		t.Errorf("within the TTL: got %v %v %v", fact, age, ok)
	}
	now = now.Add(31 * time.Second)
	if _, _, ok := l.Summary("east", service, 80); ok {
		t.Error("beyond the TTL: want unknown")
	}
	if got := l.Expire(); got != 1 || l.Len() != 0 || !woken(sub) {
		t.Errorf("expired %d, %d left", got, l.Len())
	}
}

func TestSnapshotShowsEveryOrigin(t *testing.T) {
	l := NewLedger(0)
	other := remote(1, service, 7)
	other.Origin.Name = "east/gw-2"
	l.MergeAll([]federation.Record{remote(1, service, 8), other})
	if v := l.Snapshot(); len(v) != 2 || v[0].Origin != "east/gw-1" || v[1].Summary.Healthy != 7 {
		t.Errorf("got %v", v)
	}
	l.Drop("east/gw-1")
	if _, ok := l.Best(federation.SummarySubject("east", service, 80)); !ok || l.Len() != 1 {
		t.Error("gw-2's word is gone, too")
	}
}

func TestLedgerUnderConcurrentUse(t *testing.T) {
	l := NewLedger(0)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			sub := l.OnChange()
			defer sub.Close()
			for i := range uint64(500) {
				l.Merge(remote(i+1, fmt.Sprint("s", i%7), uint32(g)))
				l.Summary("east", "s1", 80)
				sub.Take()
				l.Records()
				l.Expire()
			}
		})
	}
	wg.Wait()
	if l.Len() != 7 {
		t.Errorf("got %d records, want 7", l.Len())
	}
}
