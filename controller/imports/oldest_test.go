package imports

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/vip"
)

// younger reports, by the letter of KEP-1645, whether a counts after b: a later creationTimestamp, none at all, or the
// same one and a later name.
func younger(a, b Export) bool {
	switch {
	case a.Created.IsZero() != b.Created.IsZero():
		return a.Created.IsZero()
	case a.Created.Unix() != b.Created.Unix() && !a.Created.IsZero():
		return a.Created.Unix() > b.Created.Unix()
	}
	return a.Cluster > b.Cluster
}

// mergeSlowly is Merge as obvious as can be: it takes the oldest export that is left, again and again.
func mergeSlowly(exports []Export) (out Import) {
	left := slices.Clone(exports)
	for first := true; len(left) > 0; first = false {
		at := 0
		for i := range left {
			if younger(left[at], left[i]) {
				at = i
			}
		}
		e := left[at]
		left = slices.Delete(left, at, at+1)
		if first {
			out.Headless, out.Affinity = e.Headless, e.Affinity
		}
		for _, p := range e.Ports {
			taken := false
			for _, o := range out.Ports {
				taken = taken || o.Name == p.Name || o.Port == p.Port
			}
			if !taken {
				out.Ports = append(out.Ports, p)
			}
		}
	}
	return out
}

func anExport(rng *rand.Rand, cluster string) Export {
	e := Export{Cluster: cluster, Headless: rng.IntN(3) == 0, Affinity: []string{"", "ClientIP"}[rng.IntN(2)]}
	if rng.IntN(5) > 0 {
		e.Created = start.Add(time.Duration(rng.IntN(6)) * time.Hour)
	}
	for _, name := range []string{"a", "b", "c"} {
		number := uint16(80 + rng.IntN(3))
		if rng.IntN(2) == 0 && !slices.ContainsFunc(e.Ports, func(p Port) bool { return p.Port == number }) {
			e.Ports = append(e.Ports, Port{Name: name, Protocol: "TCP", Port: number})
		}
	}
	return e
}

// Random exports of random networks are linked and unlinked one after another, in any order. The import is always what
// the slow model makes of them; and one more, younger export changes neither type, nor session affinity, nor address,
// nor any port that the import has.
func TestYoungerExportChangesNothing(t *testing.T) {
	web := vip.Name{Namespace: "demo", Name: "web"}
	added := 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 9))
		exports, ledger, have := map[string]Export{}, vip.New(vip.DefaultRanges()), map[vip.Name]Import{}
		s := &server{objects: have}
		now := start
		for step := range 25 {
			now = now.Add(time.Minute)
			before, existed := have[web]
			cluster := []string{"alpha", "bravo", "west", "zulu"}[rng.IntN(4)]
			one, was := exports[cluster]
			onlyYounger := !was && len(exports) > 0
			if was {
				delete(exports, cluster)
			} else {
				one = anExport(rng, cluster)
				for _, e := range exports {
					onlyYounger = onlyYounger && younger(one, e)
				}
				exports[cluster] = one
			}
			view := View{Exports: map[vip.Name][]Export{}, Vague: func(string) bool { return false }, Lacks: func(string) bool { return false }}
			for _, e := range exports {
				view.Exports[web] = append(view.Exports[web], e)
			}
			for _, w := range Plan(view, have, ledger, now).Writes {
				s.do(t, w)
			}
			is, exists := have[web]
			if exists != (len(exports) > 0) {
				t.Fatalf("seed %d, step %d: imported %v from %v", seed, step, exists, exports)
			}
			if !exists {
				continue
			}
			want := mergeSlowly(view.Exports[web])
			slices.SortFunc(want.Ports, comparePorts)
			if is.Headless != want.Headless || is.Affinity != want.Affinity || !slices.Equal(is.Ports, want.Ports) || (len(is.IPs) == 0) != is.Headless {
				t.Fatalf("seed %d, step %d: of %+v comes %+v; want %+v", seed, step, exports, is, want)
			}
			if !onlyYounger || !existed {
				continue
			}
			added++
			if is.Headless != before.Headless || is.Affinity != before.Affinity || fmt.Sprint(is.IPs) != fmt.Sprint(before.IPs) {
				t.Fatalf("seed %d, step %d: the younger export %+v made %+v of %+v", seed, step, one, is, before)
			}
			for _, p := range before.Ports {
				if !slices.Contains(is.Ports, p) {
					t.Fatalf("seed %d, step %d: the younger export %+v took the port %+v: %+v, was %+v", seed, step, one, p, is.Ports, before.Ports)
				}
			}
		}
	}
	if added < 200 {
		t.Errorf("only %d younger exports were added", added)
	}
}

// While the exports of one network are not known, as after a restart of the controller, any other network that is known
// already adds ports at most: the unknown export may be the oldest.
func TestUnknownNetworkKeepsImportUnchanged(t *testing.T) {
	web := vip.Name{Namespace: "demo", Name: "web"}
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 10))
		exports := []Export{anExport(rng, "alpha"), anExport(rng, "west"), anExport(rng, "zulu")}
		view := View{Exports: map[vip.Name][]Export{web: exports}, Vague: func(string) bool { return false }, Lacks: func(string) bool { return false }}
		ledger, have := vip.New(vip.DefaultRanges()), map[vip.Name]Import{}
		s := &server{objects: have}
		for _, w := range Plan(view, have, ledger, start).Writes {
			s.do(t, w)
		}
		before := have[web]
		heard := map[string]bool{}
		view.Vague = func(n string) bool { return !heard[n] }
		for _, i := range rng.Perm(len(exports)) { // networks are heard again in any order
			heard[exports[i].Cluster] = true
			view.Exports[web] = nil
			for _, e := range exports {
				if heard[e.Cluster] {
					view.Exports[web] = append(view.Exports[web], e)
				}
			}
			if r := Plan(view, have, ledger, start); len(r.Writes) > 0 {
				t.Fatalf("seed %d: heard from %v of %+v, %s makes %+v of %+v", seed, heard, exports, r.Writes[0].Do, r.Writes[0].Import, before)
			}
		}
	}
}
