package ledger

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Random exports of one service: in any order the merged one has each port, identity and alias that
// any of them has, and nothing else, no name twice, the oldest age, the narrowest scope, a distribution if
// all have the same, and a problem if they differ.
func TestMergedExportHasAllPartsOfEach(t *testing.T) {
	id := func(name string) spiffeid.ID { return spiffeid.RequireFromString("spiffe://x/ns/demo/sa/" + name) }
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 8))
		var exports []*record.Export
		var ids []spiffeid.ID
		ports, accounts, oldest := map[string]bool{}, map[string]bool{}, int64(0) // what single exports have
		names := map[uint16]map[string]bool{}
		var aliases []string
		narrowest, others := record.ScopeGlobal, map[string]bool{} // scope, aliases and distribution of single exports
		distributions := map[mesh.Distribution]bool{}
		namespaces := map[string]bool{}
		for range 1 + rng.IntN(4) {
			e := &record.Export{Name: "web", Namespace: "demo", Created: int64(rng.IntN(4))}
			if rng.IntN(6) == 0 {
				e.Namespace = "another"
			}
			namespaces[e.Namespace] = true
			called := []string{"http", "web", "admin"} // by port; an export has no name twice
			if rng.IntN(4) == 0 {
				rng.Shuffle(len(called), func(i, j int) { called[i], called[j] = called[j], called[i] })
			}
			for i, n := range []uint16{80, 81, 82} {
				if rng.IntN(2) == 0 || n == 82 && len(e.Ports) == 0 {
					p := record.Port{Name: called[i], Port: n}
					e.Ports = append(e.Ports, p)
					if names[n] == nil {
						names[n] = map[string]bool{}
					}
					names[n][p.Name] = true
				}
			}
			for _, name := range []string{"a", "b", "c"} {
				if rng.IntN(2) == 0 {
					e.Identities = append(e.Identities, id(name))
				}
			}
			if ids = append(ids, e.Identities...); len(e.Identities) > 0 {
				accounts[fmt.Sprint(e.Identities)] = true
			}
			if e.Scope = record.ScopeGlobal; rng.IntN(6) == 0 {
				e.Scope = record.ScopeSegment
			}
			for _, a := range []string{"a.example.com", "b.example.com"} {
				if rng.IntN(6) > 0 {
					e.Aliases = append(e.Aliases, a)
				}
			}
			if e.Distribution = mesh.PreferRegion; rng.IntN(6) == 0 {
				e.Distribution = []mesh.Distribution{"", mesh.Any}[rng.IntN(2)]
			}
			aliases, narrowest, distributions[e.Distribution] = append(aliases, e.Aliases...), min(narrowest, e.Scope), true
			others[fmt.Sprint(e.Scope, e.Aliases, e.Distribution)] = true
			if e.Scope == record.ScopeGlobal && rng.IntN(2) == 0 {
				e.Scope = record.ScopeGlobalOnly // the same
			}
			ports[fmt.Sprint(e.Ports)] = true
			if len(e.Ports) > 1 && rng.IntN(2) == 0 { // their order means nothing
				slices.Reverse(e.Ports)
			}
			if e.Created > 0 && (oldest == 0 || e.Created < oldest) {
				oldest = e.Created
			}
			exports = append(exports, e)
		}
		slices.SortFunc(ids, func(x, y spiffeid.ID) int { return strings.Compare(x.String(), y.String()) })
		ids = slices.Compact(ids)
		slices.Sort(aliases)
		aliases = slices.Compact(aliases)
		var distribution mesh.Distribution
		if len(distributions) == 1 {
			distribution = exports[0].Distribution
		}
		var want []record.Port
		for _, n := range slices.Sorted(maps.Keys(names)) {
			p := record.Port{Port: n}
			if len(names[n]) == 1 {
				p.Name = slices.Collect(maps.Keys(names[n]))[0]
			}
			if slices.ContainsFunc(want, func(o record.Port) bool { return o.Name == p.Name }) {
				p.Name = ""
			}
			want = append(want, p)
		}
		before := fmt.Sprint(exports)
		for range 3 {
			rng.Shuffle(len(exports), func(i, j int) { exports[i], exports[j] = exports[j], exports[i] })
			contents := make([]record.Export, len(exports))
			for i, e := range exports {
				contents[i] = *e
				contents[i].Ports, contents[i].Identities, contents[i].Aliases = slices.Clone(e.Ports), slices.Clone(e.Identities), slices.Clone(e.Aliases)
			}
			got, problem := MergeExports("west", "web", exports)
			if !slices.Equal(got.Identities, ids) || got.Created != oldest || !slices.Equal(got.Ports, want) {
				t.Fatalf("seed %d: merged identities %v, created %d, ports %v; want %v, %d and %v, of %s", seed, got.Identities, got.Created, got.Ports, ids, oldest, want, before)
			}
			if first := slices.Min(slices.Collect(maps.Keys(namespaces))); got.Namespace != first {
				t.Fatalf("seed %d: merged namespace %q, want %q", seed, got.Namespace, first)
			}
			if !slices.Equal(got.Aliases, aliases) || min(got.Scope, record.ScopeGlobal) != narrowest || got.Distribution != distribution {
				t.Fatalf("seed %d: merged aliases %v, scope %d, distribution %q; want %v, %d and %q", seed, got.Aliases, got.Scope, got.Distribution, aliases, narrowest, distribution)
			}
			if differ := len(ports) > 1 || len(accounts) > 1 || len(others) > 1 || len(namespaces) > 1; differ != (problem != "") {
				t.Fatalf("seed %d: problem %q; the exports differ: %t", seed, problem, differ)
			}
			for i, e := range exports {
				if !slices.Equal(e.Ports, contents[i].Ports) || !slices.Equal(e.Identities, contents[i].Identities) || !slices.Equal(e.Aliases, contents[i].Aliases) {
					t.Fatalf("seed %d: an export was changed: %+v, was %+v", seed, *e, contents[i])
				}
			}
		}
	}
}

// A gateway that lost its API server exports the service account and the port that its
// Deployment had before; its sibling exports the new ones.
func TestStaleGatewayEmptiesNoExport(t *testing.T) {
	l := newLedger(epoch)
	stale, fresh := newSpeaker(t, "west", "gw-1"), newSpeaker(t, "west", "gw-2")
	account := func(name string) []spiffeid.ID {
		return []spiffeid.ID{spiffeid.RequireFromString("spiffe://cluster.local/ns/shop/sa/" + name)}
	}
	before, after := export(80), export(8080)
	before.Export.Ports[0].Name, after.Export.Ports[0].Name = "http", "http"
	before.Export.Identities, after.Export.Identities = account("before"), account("after")
	offer(t, l, stale.say(before), epoch)
	offer(t, l, fresh.say(after), epoch)
	s, ok := l.Export("west", hello)
	if want := []record.Port{{Name: "http", Port: 80}, {Port: 8080}}; !ok || !slices.Equal(s.Export.Ports, want) || !slices.Equal(s.Export.Identities, append(account("after"), account("before")...)) {
		t.Errorf("got ports %v, identities %v, %v; want those of both gateways", s.Export.Ports, s.Export.Identities, ok)
	}
	if !strings.Contains(s.Problem, "differ in the identities and ports") {
		t.Errorf("problem %q; want one that names identities and ports", s.Problem)
	}
	offer(t, l, stale.say(after), epoch.Add(time.Second))
	if s, _ = l.Export("west", hello); len(s.Export.Ports) != 1 || !slices.Equal(s.Export.Identities, account("after")) || s.Problem != "" {
		t.Errorf("its API server answers again: got %+v; want what both export now", s)
	}
}
