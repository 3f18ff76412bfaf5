package mesh

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"pgregory.net/rapid"
)

// A mesh whose workloads are put at once has the answers that a scan gives, and
// goes on from there as any other.
func TestManyWorkloadsAtOnceAreAsOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		twin, e := newPlain(), new(Snapshot).Edit()
		for _, host := range modelHosts[:3] {
			svc := &Service{Hostname: host}
			twin.services[host] = svc
			e.PutService(svc)
		}
		var list []Placement
		for _, uid := range rapid.Permutation(modelUIDs).Draw(t, "order") {
			w, hosts := twin.drawWorkload(t, uid)
			twin.workloads[uid], twin.member[uid] = w, slices.DeleteFunc(slices.Clone(hosts), func(h string) bool { return twin.services[h] == nil })
			list = append(list, Placement{w, hosts})
		}
		e.PutWorkloads(list)
		first := e.Snapshot(1)
		was := twin.clone()
		for range rapid.IntRange(0, 6).Draw(t, "changes") {
			twin.change(t, e)
		}
		twin.check(t, e.Snapshot(2))
		was.check(t, first)
	})
}

// Two claims of one UID, ID or address are of no use; the later one has it,
// however they were put.
func TestTheLaterOfTwoClaimsHasIt(t *testing.T) {
	for _, uids := range [][]string{{"b", "a"}, {"a", "a"}} {
		var list []Placement
		for i, uid := range uids {
			list = append(list, Placement{&Workload{UID: uid, Name: fmt.Sprint(i), Network: "n", Endpoint: 7, Identity: spiffeid.RequireFromString("spiffe://x/a")}, nil})
		}
		e := new(Snapshot).Edit()
		e.PutWorkloads(list)
		s := e.Snapshot(1)
		if w := s.WorkloadByEndpoint(7); w == nil || w.Name != "1" {
			t.Errorf("%q: endpoint 7 is %+v, want the later one", uids, w)
		}
		distinct := len(slices.Compact(slices.Sorted(slices.Values(uids))))
		if n := len(s.Workloads()); n != distinct || s.NumWorkloads() != n {
			t.Errorf("%q: %d workloads listed, %d counted, want %d", uids, n, s.NumWorkloads(), distinct)
		}
		if w := s.Workload(uids[1]); w == nil || w.Name != "1" {
			t.Errorf("%q: workload %s is %+v, want the later one", uids, uids[1], w)
		}
	}
}

func TestTrieAtOnceHoldsWhatWasPut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := map[collider]int{}
		var slots []slot[collider, int]
		for i := range rapid.IntRange(0, 2000).Draw(t, "n") {
			k := collider(i * 7919 % 1501)
			want[k] = i
			slots = append(slots, slotOf(k, i))
		}
		tr := trieOf(new(token), slots)
		if tr.n != len(want) || !maps.Equal(maps.Collect(tr.all()), want) {
			t.Fatalf("%d keys, and a walk finds %d; want %d", tr.n, len(maps.Collect(tr.all())), len(want))
		}
		later := tr
		for k := range collider(1600) {
			if tr.get(k) != want[k] {
				t.Fatalf("%d: got %d, want %d", k, tr.get(k), want[k])
			}
			later.del(new(token), k)
		}
		if later.n != 0 || tr.n != len(want) {
			t.Fatalf("%d keys left, and %d in the version before; want 0 and %d", later.n, tr.n, len(want))
		}
	})
}
