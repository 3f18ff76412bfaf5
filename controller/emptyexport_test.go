package controller

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/links"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// byNetwork is what networks have proven to export.
type byNetwork map[string]*record.Export

func (b byNetwork) Known(network, _ string) (healthstream.Known, bool) {
	x, ok := b[network]
	return healthstream.Known{Offer: x}, ok
}

func (b byNetwork) Whole(string) bool { return true }

// TestImportStaysWhilePodsComeAndGo runs random schedules of two networks whose gateway instances see pods come and go,
// each at its own time, and sends their records over the wire. As long as the networks export the service, its
// ServiceImport is written once; it is deleted when none does.
func TestImportStaysWhilePodsComeAndGo(t *testing.T) {
	const host = "web.demo.svc.cluster.local"
	n := vip.Name{Namespace: "demo", Name: "web"}
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 8))
		from := byNetwork{}
		e := newExports(links.Of("east", map[string]keyfile.Link{"alpha": {}, "west": {}}), "cluster.local", from)
		addresses, have := vip.New(vip.DefaultRanges()), map[vip.Name]imports.Import{}
		exported := map[string]bool{}
		instances := map[string][]record.Export{}
		var written imports.Import
		for step := range 120 {
			network := []string{"alpha", "west"}[rng.IntN(2)]
			toggled := len(exported) == 0 || rng.IntN(25) == 0
			if toggled {
				if exported[network] {
					delete(exported, network)
					delete(instances, network)
				} else {
					exported[network] = true
					x := record.Export{Name: "web", Namespace: "demo", Scope: record.ScopeGlobal, Ports: []record.Port{{Name: "http", Port: 80}}, Headless: network == "alpha" && seed%3 == 0, Created: 1_700_000_000 + int64(rng.IntN(100))}
					instances[network] = []record.Export{x, x}
				}
			} else if of := instances[network]; of != nil { // one instance sees a pod come or go
				x := &of[rng.IntN(len(of))]
				x.Identities, x.Capacity = nil, 0
				for _, account := range []string{"canary", "web"} {
					if rng.IntN(2) == 0 {
						x.Identities = append(x.Identities, spiffeid.RequireFromString("spiffe://cluster.local/ns/demo/sa/"+account))
						x.Capacity += uint32(rng.IntN(3))
					}
				}
			}
			delete(from, network)
			if exported[network] {
				var sent []*record.Export
				for _, x := range instances[network] {
					entry, err := record.Encode(record.ExportRecord(host, x))
					if err != nil {
						t.Fatal(err)
					}
					got, err := entry.Decode()
					if err != nil {
						t.Fatal(err)
					}
					sent = append(sent, got.Export)
				}
				merged, _ := ledger.MergeExports(network, host, sent)
				from[network] = &merged
			}
			e.update([]healthstream.Change{{Network: network, Service: host}})
			view := imports.View{Exports: e.all(), Vague: func(string) bool { return false }, Lacks: func(string) bool { return false }}
			writes := imports.Plan(view, have, addresses, time.Unix(1_800_000_000+int64(step), 0)).Writes
			for _, w := range writes {
				if !toggled {
					t.Fatalf("seed %d, step %d: %s of %+v while pods come and go: exports %+v", seed, step, w.Do, w.Import, view.Exports[n])
				}
				if delete(have, n); w.Do != imports.Delete {
					w.Import.UID = "uid"
					have[n] = w.Import
				}
			}
			is, exists := have[n]
			if exists != (len(exported) > 0) {
				t.Fatalf("seed %d, step %d: imported %v, exported by %v", seed, step, exists, exported)
			}
			if !toggled && !reflect.DeepEqual(is, written) {
				t.Fatalf("seed %d, step %d: the import is %+v and was %+v", seed, step, is, written)
			}
			if written = is; exists && fmt.Sprint(e.problems()) != "[]" {
				t.Fatalf("seed %d, step %d: problems %q", seed, step, e.problems())
			}
		}
	}
}
