package imports

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/vip"
)

var start = time.Unix(1_800_000_000, 0)

func named(i int) vip.Name {
	return vip.Name{Namespace: []string{"demo", "shop"}[i%2], Name: fmt.Sprint("s", i)}
}

func tcp(ports ...uint16) (out []Port) {
	for _, p := range ports {
		out = append(out, Port{Name: fmt.Sprint("p", p), Protocol: "TCP", Port: p})
	}
	return out
}

// server is the API server of a test: what Plan wants is written there, perhaps not all.
type server struct {
	objects map[vip.Name]Import
	serial  int
	lossy   bool // of what is written, the status is lost
}

func (s *server) do(t *testing.T, w Write) {
	t.Helper()
	is, exists := s.objects[w.Import.Name]
	if exists && !is.Ours {
		t.Fatalf("%s of %s, which somebody else has made", w.Do, w.Import.Name)
	}
	if exists == (w.Do == Create) {
		t.Fatalf("%s of %s, which exists: %v", w.Do, w.Import.Name, exists)
	}
	s.serial++
	if w.Do == Delete {
		delete(s.objects, w.Import.Name)
		return
	}
	if w.Do != Create && is.Ending {
		t.Fatalf("%s of %s, which was deleted", w.Do, w.Import.Name)
	}
	next := w.Import
	next.Version = fmt.Sprint(s.serial)
	if next.Behind = w.Do != Status && s.lossy; next.Behind { // its status was not written any more
		next.Ready = is.Ready
	}
	if w.Do == Create {
		next.UID = fmt.Sprint("uid-", s.serial)
	}
	s.objects[next.Name] = next
}

// TestImportsFollowExports runs random schedules of exports that come, change and go, of
// networks of which not all is known, of writes that fail, of leaders that start again and
// of people who make and delete imports, and compares what there is with what is exported.
func TestImportsFollowExports(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		s := &server{objects: map[vip.Name]Import{}}
		ledger := vip.New(vip.DefaultRanges())
		truth := map[vip.Name]map[string]Export{} // what networks export
		vague := map[string]bool{}
		any := func() bool { return vague["east"] || vague["north"] }
		lacks := map[string]bool{}
		addresses := map[string]string{} // of imports, by UID
		now := start
		for step := range 150 {
			now = now.Add(time.Duration(rng.IntN(30)) * time.Second)
			n, network := named(rng.IntN(8)), []string{"east", "north"}[rng.IntN(2)]
			s.lossy = rng.IntN(4) == 0
			switch op := rng.IntN(18); {
			case op == 16: // somebody takes away all that it says of itself
				if is, exists := s.objects[n]; exists && is.Ours {
					is.Clusters, is.Ready, is.Behind = nil, false, true
					s.objects[n] = is
				}
			case op == 17: // somebody deletes it, and it stays for a while
				if is, exists := s.objects[n]; exists && is.Ending {
					delete(s.objects, n)
				} else if exists {
					is.Ending = true
					s.objects[n] = is
				}
			case op < 6:
				if truth[n] == nil {
					truth[n] = map[string]Export{}
				}
				truth[n][network] = Export{Cluster: network, Ports: tcp(uint16(80 + rng.IntN(3))), Created: start.Add(time.Duration(rng.IntN(3)) * time.Hour), Headless: rng.IntN(8) == 0, Affinity: []string{"", "", "ClientIP"}[rng.IntN(3)]}
			case op < 10:
				if delete(truth[n], network); len(truth[n]) == 0 {
					delete(truth, n)
				}
			case op < 12:
				vague[network] = !vague[network]
			case op == 12:
				ledger, _ = vip.Parse(vip.DefaultRanges(), ledger.String(), now)
			case op == 13:
				if is, exists := s.objects[n]; exists {
					delete(s.objects, n)
					_ = is
				} else {
					s.serial++
					s.objects[n] = Import{Name: n, Version: fmt.Sprint(s.serial), UID: "foreign", Clusters: []string{"elsewhere"}}
				}
			case op == 14:
				lacks["shop"] = !lacks["shop"]
				if lacks["shop"] { // and all that was there
					for n := range s.objects {
						if n.Namespace == "shop" {
							delete(s.objects, n)
						}
					}
				}
			default:
				ledger = vip.New(vip.DefaultRanges()) // it was lost
			}
			view := View{Exports: map[vip.Name][]Export{}, Unheard: any(), Vague: func(n string) bool { return vague[n] }, Lacks: func(n string) bool { return lacks[n] }}
			for n, of := range truth {
				for network, e := range of {
					if !vague[network] {
						view.Exports[n] = append(view.Exports[n], e)
					}
				}
			}
			before := map[vip.Name]Import{}
			for n, i := range s.objects {
				before[n] = i
			}
			r := Plan(view, s.objects, ledger, now)
			whole := rng.IntN(4) > 0
			for _, w := range r.Writes {
				if !whole && rng.IntN(2) == 0 {
					break // the API server is away
				}
				s.do(t, w)
			}
			seen := map[netip.Addr]vip.Name{}
			for n, i := range s.objects {
				if !i.Ours {
					if before[n].Version != i.Version {
						t.Fatalf("seed %d, step %d: %s was changed, which somebody else has made", seed, step, n)
					}
					continue
				}
				for _, a := range i.IPs {
					if other, twice := seen[a]; twice {
						t.Fatalf("seed %d, step %d: %s is of %s and of %s", seed, step, a, n, other)
					}
					seen[a] = n
				}
				if was := addresses[i.UID]; !i.Headless && was != "" && was != fmt.Sprint(i.IPs) {
					t.Fatalf("seed %d, step %d: %s had %s and has %s", seed, step, n, was, i.IPs)
				}
				if !i.Headless {
					addresses[i.UID] = fmt.Sprint(i.IPs)
				}
			}
			for n, is := range before { // what is not known is not taken back
				next := s.objects[n]
				held := any() && len(is.Clusters) == 0 || slices.ContainsFunc(is.Clusters, func(c string) bool { return vague[c] })
				for _, p := range is.Ports {
					if is.Ours && held && !lacks[n.Namespace] && !slices.Contains(next.Ports, p) {
						t.Fatalf("seed %d, step %d: %s has no port %d any more, of networks of which not all is known: it was %+v and is %+v", seed, step, n, p.Port, is, next)
					}
				}
				for _, cluster := range is.Clusters {
					if now, still := s.objects[n]; is.Ours && vague[cluster] && !lacks[n.Namespace] && (!still || !slices.Contains(now.Clusters, cluster)) {
						t.Fatalf("seed %d, step %d: %s is not imported from %s any more, of which not all is known", seed, step, n, cluster)
					}
				}
			}
			if !whole {
				continue
			}
			for n, of := range truth {
				is, exists := s.objects[n]
				for network := range of {
					if view.alone(is) && exists {
						continue
					}
					if !vague[network] && !lacks[n.Namespace] && (!exists || is.Ours && !slices.Contains(is.Clusters, network)) {
						t.Fatalf("seed %d, step %d: %s is exported by %s and imported is %v", seed, step, n, network, is)
					}
				}
			}
			for n, is := range s.objects {
				for _, network := range is.Clusters {
					if _, exported := truth[n][network]; !view.alone(is) && !exported && !vague[network] {
						t.Fatalf("seed %d, step %d: %s is imported from %s, which does not export it", seed, step, n, network)
					}
				}
			}
			if again := Plan(view, s.objects, ledger, now); len(again.Writes) > 0 && !s.lossy {
				t.Fatalf("seed %d, step %d: written again is %v", seed, step, again.Writes)
			}
		}
	}
}

func TestTheOldestExportCountsAndPortsAreTheUnion(t *testing.T) {
	web := vip.Name{Namespace: "demo", Name: "web"}
	old := Export{Cluster: "north", Created: start, Ports: []Port{{Name: "http", Protocol: "TCP", Port: 80}}}
	young := Export{Cluster: "east", Created: start.Add(time.Hour), Ports: []Port{{Name: "http", Protocol: "TCP", Port: 8080}, {Name: "admin", Protocol: "TCP", Port: 9000}}}
	for _, exports := range [][]Export{{old, young}, {young, old}} {
		got, conflicts := Merge(web, exports)
		want := []Port{{Name: "http", Protocol: "TCP", Port: 80}, {Name: "admin", Protocol: "TCP", Port: 9000}}
		if !slices.Equal(got.Ports, want) || !slices.Equal(conflicts, []string{PortConflict}) || !slices.Equal(got.Clusters, []string{"east", "north"}) {
			t.Errorf("merged: %v of %v, %v; want %v", got.Ports, got.Clusters, conflicts, want)
		}
	}
	headless := old
	headless.Headless = true
	headless.Created = time.Time{} // not known: the youngest
	if got, conflicts := Merge(web, []Export{headless, young}); got.Headless || !slices.Contains(conflicts, TypeConflict) {
		t.Errorf("merged with a headless one: %v, %v", got.Headless, conflicts)
	}
	sticky := young
	sticky.Affinity = "ClientIP"
	for _, exports := range [][]Export{{old, sticky}, {sticky, old}} {
		if got, conflicts := Merge(web, exports); got.Affinity != "" || !slices.Contains(conflicts, AffinityConflict) {
			t.Errorf("merged with one that asks for affinity: %q, %v", got.Affinity, conflicts)
		}
	}
	if got, conflicts := Merge(web, []Export{sticky, sticky}); got.Affinity != "ClientIP" || len(conflicts) > 0 {
		t.Errorf("merged of two that ask for affinity: %q, %v", got.Affinity, conflicts)
	}
}

func TestWhatSomebodyElseHasMadeIsAProblem(t *testing.T) {
	web := vip.Name{Namespace: "demo", Name: "web"}
	view := View{Exports: map[vip.Name][]Export{web: {{Cluster: "east", Ports: tcp(80)}}}, Vague: func(string) bool { return false }, Lacks: func(string) bool { return false }}
	r := Plan(view, map[vip.Name]Import{web: {Name: web, Version: "1", UID: "1"}}, vip.New(vip.DefaultRanges()), start)
	if len(r.Writes) != 0 || len(r.Problems) != 1 || r.Problems[0].Reason != "NotOurs" {
		t.Errorf("writes %v, problems %v; want one problem", r.Writes, r.Problems)
	}
}

func TestAnExhaustedRangeIsAProblem(t *testing.T) {
	view := View{Exports: map[vip.Name][]Export{}, Vague: func(string) bool { return false }, Lacks: func(string) bool { return false }}
	for i := range 20 {
		view.Exports[named(i)] = []Export{{Cluster: "east", Ports: tcp(80)}}
	}
	r := Plan(view, nil, vip.New(vip.Ranges{V4: netip.MustParsePrefix("10.9.8.0/28")}), start)
	if len(r.Problems) != 8 || len(r.Writes) != 20 || r.Problems[0].Reason != "NetworkShare" {
		t.Errorf("%d problems and %d writes; want 8 (of 14 numbers one network has no more than twelve) and 20: %v", len(r.Problems), len(r.Writes), r.Problems)
	}
	for _, w := range r.Writes {
		if w.Import.Ready != (len(w.Import.IPs) > 0) || w.Import.Ready != (w.Import.Waits == "") {
			t.Errorf("%s has %v and is ready: %v", w.Import.Name, w.Import.IPs, w.Import.Ready)
		}
	}
}

// Imports that there are when the ledger is lost are in the shares of those that export them, as they were,
// and what nobody exports, whatever it says of itself, is in nobody's.
func TestImportsThatAreAdoptedTakeNoShareOfOthers(t *testing.T) {
	real := vip.Name{Namespace: "demo", Name: "real"}
	for what, exporters := range map[string][]string{"that two networks export": {"east", "north"}, "that nobody exports": nil} {
		view := View{Exports: map[vip.Name][]Export{real: {{Cluster: "east", Ports: tcp(80)}}}, Vague: func(string) bool { return false }, Lacks: func(string) bool { return false }}
		have := map[vip.Name]Import{}
		for i := range 12 { // of 14 numbers one network has no more
			have[named(i)] = Import{Name: named(i), Ours: true, UID: fmt.Sprint(i), Ports: tcp(80), Clusters: []string{"east", "north"}, IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 8, byte(i + 1)})}}
			for _, e := range exporters {
				view.Exports[named(i)] = append(view.Exports[named(i)], Export{Cluster: e, Ports: tcp(80)})
			}
		}
		ledger := vip.New(vip.Ranges{V4: netip.MustParsePrefix("10.9.8.0/28")})
		r := Plan(view, have, ledger, start)
		if len(ledger.Addresses(real)) != 1 {
			t.Errorf("beside imports %s a service of east has no address: %v", what, r.Problems)
		}
		for n, i := range have {
			if got := ledger.Addresses(n); len(exporters) > 0 && !slices.Equal(got, i.IPs) {
				t.Errorf("%s: %v has %v, had %v", what, n, got, i.IPs)
			}
		}
		if a, b := ledger.UsedBy("east"), ledger.UsedBy("north"); len(exporters) > 0 && (a > 7 || b > 7) {
			t.Errorf("%s: east has %d, north %d; want as much as they can have alike", what, a, b)
		}
	}
}

// What nobody adopts is in use all the same, as is what somebody else has made: nobody else gets its address
// while there is another one.
func TestAddressesInUseAreTheLastToBeGiven(t *testing.T) {
	view := View{Exports: map[vip.Name][]Export{}, Vague: func(string) bool { return false }, Lacks: func(string) bool { return false }}
	have := map[vip.Name]Import{}
	for i := range 12 { // of 14 numbers, beyond the share of what no network exports
		have[named(i)] = Import{Name: named(i), Ours: i%2 == 0, Ending: true, UID: fmt.Sprint(i), Ports: tcp(80), IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 8, byte(i + 1)})}}
	}
	ledger := vip.New(vip.Ranges{V4: netip.MustParsePrefix("10.9.8.0/28")})
	for i := range 2 {
		view.Exports[vip.Name{Namespace: "demo", Name: fmt.Sprint("new-", i)}] = []Export{{Cluster: fmt.Sprint("n", i), Ports: tcp(80)}}
	}
	Plan(view, have, ledger, start)
	for n := range view.Exports {
		got := ledger.Addresses(n)
		if len(got) != 1 {
			t.Fatalf("%s has no address", n)
		}
		for _, i := range have {
			if slices.Contains(i.IPs, got[0]) {
				t.Errorf("%s is given %s, which %s has, and two are free", n, got[0], i.Name)
			}
		}
	}
	view.Exports[vip.Name{Namespace: "demo", Name: "third"}] = []Export{{Cluster: "n3", Ports: tcp(80)}}
	Plan(view, have, ledger, start)
	if len(ledger.Addresses(vip.Name{Namespace: "demo", Name: "third"})) != 1 {
		t.Error("who claims addresses of the ranges keeps others from getting any")
	}
}

// What a problem says stays as it is while others come and go: the message names the Event.
func TestTheMessageOfAProblemStays(t *testing.T) {
	view := View{Exports: map[vip.Name][]Export{}, Vague: func(string) bool { return false }, Lacks: func(string) bool { return false }}
	ledger, messages, numbers := vip.New(vip.Ranges{V4: netip.MustParsePrefix("10.9.8.0/28")}), map[string]bool{}, map[string]bool{}
	for i := range 20 {
		view.Exports[named(i)] = []Export{{Cluster: "east", Ports: tcp(80)}}
	}
	for i := range 5 {
		if i > 0 {
			view.Exports[named(100+i)] = []Export{{Cluster: fmt.Sprint("west-", i), Ports: tcp(80)}}
		}
		for _, p := range Plan(view, nil, ledger, start).Problems {
			if p.Reason != "NetworkShare" {
				continue
			}
			messages[p.Message], numbers[p.String()] = true, true
			if !strings.Contains(p.Message, "vips.ipv4") || !strings.Contains(p.String(), "east has 12") {
				t.Errorf("%s: %s; want the remedy, and how many it has", p.Name, p)
			}
		}
	}
	if len(messages) != 1 || len(numbers) < 2 {
		t.Errorf("messages %v for what is, in numbers, %v; want one", messages, numbers)
	}
}

// What was made and lost its status says nothing of who exports it: it stands until all
// networks are known again.
func TestAnImportWithoutStatusIsNotDeletedWhileANetworkIsVague(t *testing.T) {
	web := vip.Name{Namespace: "demo", Name: "web"}
	is := Import{Name: web, Ours: true, Behind: true, Version: "1", UID: "1", Ports: tcp(80), IPs: []netip.Addr{netip.MustParseAddr("240.240.0.5"), netip.MustParseAddr("2001:2::5")}}
	vague := true
	view := View{Vague: func(n string) bool { return vague && n == "east" }, Lacks: func(string) bool { return false }}
	ledger := vip.New(vip.DefaultRanges())
	view.Unheard = true
	if r := Plan(view, map[vip.Name]Import{web: is}, ledger, start); len(r.Writes) != 0 {
		t.Errorf("while a network is not known: %+v", r.Writes)
	}
	if got := ledger.Addresses(web); !slices.Equal(got, is.IPs) {
		t.Errorf("it has %v; want %v", got, is.IPs)
	}
	vague, view.Unheard = false, false
	if r := Plan(view, map[vip.Name]Import{web: is}, ledger, start); len(r.Writes) != 1 || r.Writes[0].Do != Delete {
		t.Errorf("when all is known, and nobody exports it: %+v; want that it is deleted", r.Writes)
	}
}
