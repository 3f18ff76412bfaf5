package discovery

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// facts writes all that a snapshot says, by name, so that two can be compared
// line by line.
func facts(s *mesh.Snapshot) map[string]string {
	out := map[string]string{"trust domain": s.TrustDomain()}
	for _, n := range s.ListNetworks() {
		out["network "+n.Name] = fmt.Sprintf("%q", n.Nodes)
	}
	for _, n := range s.GatewayNetworks() {
		for _, g := range s.Gateways(n) {
			out["gateway "+n+"/"+g.Name] = fmt.Sprintf("%+v", *g)
		}
	}
	for _, svc := range s.Services() {
		flat := *svc
		flat.Import = nil
		text := fmt.Sprintf("%+v", flat)
		if svc.Import != nil {
			text += fmt.Sprintf(" import %+v", *svc.Import)
		}
		for _, n := range s.Networks(svc) {
			share, _ := s.Share(svc, n)
			text += fmt.Sprintf(" %+v, told %+v,", *share.Export, s.Told(svc, n))
			text += " " + n
			for _, w := range s.Members(svc, n) {
				text += fmt.Sprintf(" %+v", *w)
			}
		}
		out["service "+svc.Hostname] = text
	}
	for _, w := range s.Workloads() {
		text := fmt.Sprintf("%+v", *w)
		for _, svc := range s.ServicesOf(w.UID) {
			text += " " + svc.Hostname
		}
		out["workload "+w.UID] = text
	}
	for _, w := range s.OutsideOn("", nodeOfDraws) {
		if w.Outside {
			out["workload "+w.UID] = fmt.Sprintf("%+v", *w)
		}
	}
	for _, o := range s.Policies().Objects() {
		out["policies"] += fmt.Sprintf("%+v\n", o)
	}
	return out
}

// nodeOfDraws is where all workloads are that are drawn.
const nodeOfDraws = "n1"

// checkOutside compares which workloads are outside with what the records say: those of which each record is wrong, or on
// a network that nobody lists.
func checkOutside(t *rapid.T, b *Builder, s *mesh.Snapshot) {
	want := map[string]bool{}
	for k, e := range b.entries {
		if uid := e.reading.workload; k.Kind == KindWorkload && isUID(uid.UID) && uid.Node != "" {
			is, known := want[uid.UID]
			want[uid.UID] = (is || !known) && (e.faulty || !b.placed(e))
		}
	}
	for uid, is := range want {
		w := s.Scheduled(uid)
		if got := w != nil && w.Outside; got != is {
			t.Fatalf("workload %s is outside: %t, want %t", uid, got, is)
		}
	}
}

// checkSnapshot asks for everything by every name that it has.
func checkSnapshot(t *rapid.T, s *mesh.Snapshot) {
	for _, w := range s.Workloads() {
		if s.Workload(w.UID) != w || s.WorkloadByEndpoint(w.Endpoint) != w || w.Capacity == 0 || w.Identity.IsZero() || len(w.Addresses) == 0 || !s.HasNetwork(w.Network) {
			t.Fatalf("workload %+v is not found by its names, or incomplete", w)
		}
		for _, a := range w.Addresses {
			if s.WorkloadAt(w.Network, a) != w {
				t.Fatalf("%s on %s is not %s", a, w.Network, w.UID)
			}
		}
	}
	for _, svc := range s.Services() {
		for _, name := range append([]string{svc.Hostname}, svc.Aliases...) {
			if s.Service(name) != svc {
				t.Fatalf("%s does not lead to its service", name)
			}
		}
		for _, v := range svc.VIPs {
			if s.ServiceAt(v) != svc {
				t.Fatalf("%s does not lead to %s", v, svc.Hostname)
			}
		}
		if x := svc.Import; x != nil {
			for _, a := range x.Aliases {
				if s.Service(a) != svc {
					t.Fatalf("%s does not lead to the service of its import", a)
				}
			}
			for _, v := range x.VIPs {
				if s.ServiceAt(v) != svc {
					t.Fatalf("%s does not lead to the import beside %s", v, svc.Hostname)
				}
			}
		}
		for _, n := range s.Networks(svc) {
			for _, w := range s.Members(svc, n) {
				if w.Network != n || s.Workload(w.UID) != w || !contains(s.ServicesOf(w.UID), svc) || !contains(s.Identities(svc, n), w.Identity) {
					t.Fatalf("member %s of %s on %s is not what it is elsewhere", w.UID, svc.Hostname, n)
				}
			}
		}
	}
	for _, n := range s.GatewayNetworks() {
		if !s.HasNetwork(n) {
			t.Fatalf("gateways of network %s, which is not listed", n)
		}
	}
}

// who is the twin of the contests: who has what, decided by going through all
// records in order.
func who(names *names, records Listing) map[Key]bool {
	var all []*entry
	for _, it := range records.items {
		rd := reader{names: names, object: it.key}
		e := &entry{key: it.key, reading: it.record.read(&rd)}
		e.faulty = rd.unusable()
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Or(cmp.Compare(a.key.Kind, b.key.Kind), a.before(b)) })
	aliases := map[string][]Source{} // names that services have beside their hostnames, by who says so
	taken, in, at := map[claimKey]*entry{}, map[Key]bool{}, map[claimKey][]*entry{}
	// Several gateways may have one address: those of one network that one source says, and
	// those of any that networks say of themselves.
	free := func(e *entry, c claim) bool {
		if c.what != gatewayAddress {
			return taken[c.key()] == nil
		}
		return !slices.ContainsFunc(at[c.key()], func(o *entry) bool {
			together := o.key.Source == e.key.Source && (e.key.Source == Told || o.reading.on == e.reading.on)
			return !together
		})
	}
	for _, e := range all {
		n := taken[claimKey{networkName, e.reading.on}]
		ok := !e.faulty && (e.key.Kind == KindNetwork || e.key.Kind == KindService || e.key.Kind == KindPolicy || n != nil && n.key.Source <= e.key.Source)
		for _, c := range e.reading.claims {
			ok = ok && free(e, c) && (c.what != hostName || !slices.ContainsFunc(aliases[c.text], func(s Source) bool { return s < e.key.Source }))
		}
		if ok {
			in[e.key] = true
			for _, c := range e.reading.extras {
				if c.what != virtualAddress {
					aliases[c.text] = append(aliases[c.text], e.key.Source)
				}
			}
			for _, c := range e.reading.claims {
				taken[c.key()] = e
				at[c.key()] = append(at[c.key()], e)
			}
		}
	}
	return in
}

// schedule applies changes in order, in batches that are drawn, and checks after
// each what Commit says about it.
func schedule(t *rapid.T, b *Builder, changes []Change) *mesh.Snapshot {
	known := map[string]Problem{}
	name := func(p Problem) string {
		return p.Object.String() + fmt.Sprint(p.Object.Source, p.Object.Nth) + p.Error() + fmt.Sprint(p.Out)
	}
	for _, p := range b.Problems() {
		known[name(p)] = p
	}
	last := b.current
	for len(changes) > 0 {
		n := rapid.IntRange(1, len(changes)).Draw(t, "batch")
		before := facts(last)
		b.Apply(changes[:n]...)
		changes = changes[n:]
		s, set, news := b.Commit()
		if len(before) > 0 && !maps.Equal(before, facts(last)) {
			t.Fatal("a change altered an earlier snapshot")
		}
		if s == last != set.Empty() {
			t.Fatalf("the same snapshot: %t, with changes %+v", s == last, set)
		}
		checkChanges(t, before, facts(s), set)
		for _, p := range news.Gone {
			if _, was := known[name(p)]; !was {
				t.Fatalf("gone and never there: %v", p)
			}
			delete(known, name(p))
		}
		for _, p := range news.Appeared {
			known[name(p)] = p
		}
		last = s
	}
	now := map[string]Problem{}
	for _, p := range b.Problems() {
		if p.Field == "" || p.Message == "" || len(p.Path) == 0 {
			t.Fatalf("problem without field or message: %+v", p)
		}
		now[name(p)] = p
	}
	if !slices.Equal(slices.Sorted(maps.Keys(known)), slices.Sorted(maps.Keys(now))) {
		t.Fatalf("problems by their news: %v; by asking: %v", known, now)
	}
	return last
}

// checkChanges compares what was said to be different with what is.
func checkChanges(t *rapid.T, before, after map[string]string, set Changes) {
	if set.All {
		return
	}
	var want []string
	for k := range before {
		if after[k] != before[k] {
			want = append(want, k)
		}
	}
	for k := range after {
		if _, was := before[k]; !was {
			want = append(want, k)
		}
	}
	var got []string
	for uid := range set.Workloads {
		got = append(got, "workload "+uid)
	}
	for host := range set.Services {
		got = append(got, "service "+host)
	}
	for g := range set.Gateways {
		got = append(got, "gateway "+g.Network+"/"+g.Name)
	}
	for n := range set.Networks {
		got = append(got, "network "+n)
	}
	if set.Policies {
		got = append(got, "policies")
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("said to be different: %q; different: %q", got, want)
	}
}

// Whatever the order in which changes come, and whatever was said in between, the
// snapshot and the problems are those of the records that there are in the end.
func TestOrderOfArrivalDoesNotMatter(t *testing.T) {
	conflicts, beside := 0, 0
	draw := func(t *rapid.T) {
		config := rapid.OneOf(anyConfig(), crowded())
		detours := ofSources(t, config.Draw(t, "detours").List())
		end := ofSources(t, config.Draw(t, "end").List())
		var long []Change
		for _, it := range detours.items {
			long = append(long, Change{Key: it.key, Record: it.record})
		}
		slices.SortFunc(long, func(a, b Change) int { return a.Key.compare(b.Key) }) // the draws must not depend on a map
		long = rapid.Permutation(long).Draw(t, "there")
		back := end.Since(detours)
		slices.SortFunc(back, func(a, b Change) int { return a.Key.compare(b.Key) })
		long = append(long, rapid.Permutation(back).Draw(t, "back")...)
		straight := slices.SortedFunc(slices.Values(end.changes()), func(a, b Change) int { return b.Key.compare(a.Key) })

		one, other := NewBuilder(0), NewBuilder(0)
		s1, s2 := schedule(t, one, long), schedule(t, other, straight)
		if f1, f2 := facts(s1), facts(s2); !maps.Equal(f1, f2) {
			t.Fatalf("by detours:\n%s\nstraight:\n%s", lines(f1), lines(f2))
		}
		if p1, p2 := one.Problems(), other.Problems(); !reflect.DeepEqual(p1, p2) {
			t.Fatalf("by detours:\n%v\nstraight:\n%v", p1, p2)
		}
		checkSnapshot(t, s1)
		checkOutside(t, one, s1)
		checkNames(t, one, s1)
		beside += checkBeside(t, one, s1)
		want := who(one.names, end)
		checkMade(t, one, s1)
		for k, e := range one.entries {
			if k.Source == derivedFromShares {
				continue
			}
			if e.in != want[k] {
				t.Fatalf("%s is in: %t, want %t", k, e.in, want[k])
			}
			if _, winner := one.claims.lost(e); winner != nil && winner.key.Source < k.Source {
				continue // which is no problem
			}
			if !e.in && !slices.ContainsFunc(one.problems[k], func(p Problem) bool { return p.Out }) {
				t.Fatalf("%s is out and no problem says so", k)
			}
		}
		for _, p := range one.Problems() {
			if p.Cause == CauseConflict {
				conflicts++
			}
			if p.Out && one.entries[p.Object].in {
				t.Fatalf("%v: its object is in all the same", p)
			}
		}
	}
	for rounds := 20; (conflicts == 0 || beside == 0) && rounds > 0 && !t.Failed(); rounds-- { // 20 draws, as with -short, have none in half of all runs
		rapid.Check(t, draw)
	}
	if conflicts == 0 {
		t.Error("no two records ever claimed one thing: the draws prove nothing")
	}
	if beside == 0 {
		t.Error("no import ever stood beside a service: the draws prove nothing")
	}
}

// ofSources has some of the records told by the owners of other networks, and services by the
// cluster too.
func ofSources(t *rapid.T, l Listing) Listing {
	out := Listing{byKey: map[Key]int{}, times: map[Key]int{}}
	for _, it := range l.items {
		switch told := it.key.Kind != KindWorkload; {
		case it.key.Kind == KindService:
			it.key.Source = rapid.SampledFrom([]Source{Written, Cluster, Told}).Draw(t, "source")
			if svc := it.record.(Service); it.key.Source == Cluster && rapid.Bool().Draw(t, "import") { // as gateways tell node proxies
				svc.Import = &Import{Aliases: rapid.SliceOfN(rapid.SampledFrom([]string{"x.example.org", "s0.default.mesh.internal", "z.example.org"}), 0, 2).Draw(t, "aliases"),
					VIPs: rapid.SliceOfN(rapid.SampledFrom([]netip.Addr{netip.MustParseAddr("240.0.0.1"), netip.MustParseAddr("240.0.0.2"), {}}), 0, 2).Draw(t, "vips")}
				it.record = svc
			}
		case told && rapid.Bool().Draw(t, "told"):
			it.key.Source = Told
		}
		out.byKey[it.key] = len(out.items)
		out.items = append(out.items, it)
	}
	return out
}

// checkMade goes through all shares for what comes of each, by the rules as written.
func checkMade(t *rapid.T, b *Builder, s *mesh.Snapshot) {
	listed := map[string]string{} // the hostnames of listed services, by all their names
	for _, e := range b.entries {
		if e.key.Kind == KindService && e.key.Source != derivedFromShares && e.in {
			for _, c := range append(slices.Clone(e.reading.claims), e.reading.extras...) {
				if c.what != virtualAddress && (listed[c.text] == "" || c.what == hostName) {
					listed[c.text] = e.reading.service.Hostname
				}
			}
		}
	}
	shares := map[string][]*entry{}
	for _, e := range b.entries {
		x := e.reading.share
		if !e.in || x == nil {
			continue
		}
		if own := x.Name + "." + x.Namespace + ".svc.cluster.local"; e.key.Source == Told && x.Hostname != own && listed[x.Hostname] == "" {
			if svc := s.Named(x.Hostname); svc != nil && len(s.Members(svc, e.reading.on)) == 0 && slices.Contains(s.Networks(svc), e.reading.on) {
				t.Fatalf("%s joins a service that nobody lists", e.key)
			}
			continue
		}
		shares[x.Hostname] = append(shares[x.Hostname], e)
	}
	for host, list := range shares {
		svc := s.Named(host)
		if has := listed[host]; has != "" && has != host {
			if svc != nil {
				t.Fatalf("shares have made %s, which is a name of %s", host, has)
			}
			continue
		} else if svc == nil {
			t.Fatalf("shares of %s, and there is no such service", host)
		}
		oldest := list[0]
		for _, e := range list {
			if told := s.Told(svc, e.reading.on); !reflect.DeepEqual(told, e.reading.share) {
				t.Fatalf("%s on %s is %+v, want %+v", host, e.reading.on, told, e.reading.share)
			}
			if len(s.Members(svc, e.reading.on)) == 0 && !slices.Contains(s.Networks(svc), e.reading.on) {
				t.Fatalf("%s is not on %s", host, e.reading.on)
			}
			if a, o := e.reading.created, oldest.reading.created; cmp.Or(cmp.Compare(e.key.Source, oldest.key.Source), a.Compare(o), e.before(oldest)) < 0 {
				oldest = e
			}
		}
		if listed[host] != "" {
			continue
		}
		want := oldest.reading.share
		if svc.Name != want.Name || svc.Namespace != want.Namespace || len(svc.VIPs) > 0 {
			t.Fatalf("%s is %+v, want it as in the oldest share %+v", host, svc, want)
		}
		distribution := want.Distribution
		for _, e := range list {
			x := e.reading.share
			if e.key.Source == oldest.key.Source && x.Distribution != distribution {
				distribution = mesh.PreferNetwork
			}
			if alone := (&mesh.Service{Scope: x.Scope}); s.Reaches(svc, "east", e.reading.on) != (e.reading.on == "east" || len(s.Members(svc, e.reading.on)) > 0 || s.Reaches(alone, "east", e.reading.on)) {
				t.Fatalf("%s: of scope %s its share on %s is reached: %t", host, x.Scope, e.reading.on, s.Reaches(svc, "east", e.reading.on))
			}
			for p := uint16(80); p <= 82; p++ {
				if _, has := svc.Port(p); x.Offers(p) && !has {
					t.Fatalf("%s has no port %d, which %s offers", host, p, e.key)
				}
			}
		}
		for _, p := range svc.Ports {
			if !slices.ContainsFunc(list, func(e *entry) bool { return e.reading.share.Offers(p.Service) }) {
				t.Fatalf("%s has port %d, which no share offers", host, p.Service)
			}
		}
		if !svc.Takeover || svc.Distribution != distribution {
			t.Fatalf("%s leads to others by its hostname: %t; distribution %s, want %s", host, svc.Takeover, svc.Distribution, distribution)
		}
	}
	for _, svc := range s.Services() {
		if listed[svc.Hostname] == "" && len(shares[svc.Hostname]) == 0 {
			t.Fatalf("%s outlives its shares", svc.Hostname)
		}
	}
}

// checkBeside goes through all services for what others export under each one's hostname: its names and
// addresses that no service has, each by the first of those that are told of it. It returns how many have any.
func checkBeside(t *rapid.T, b *Builder, s *mesh.Snapshot) (count int) {
	var told []*entry
	has := map[string]bool{} // by a service that is in
	for _, e := range b.entries {
		if e.key.Kind != KindService {
			continue
		}
		for _, c := range slices.Concat(e.reading.claims, e.reading.extras) {
			has[c.text] = has[c.text] || e.in
		}
		if e.key.Source == Told && !e.faulty && !e.in {
			told = append(told, e)
		}
	}
	slices.SortFunc(told, (*entry).before)
	first, of := map[string]*entry{}, map[string]*entry{}
	for _, e := range told {
		if host := e.reading.service.Hostname; of[host] == nil {
			of[host] = e
		}
		for _, c := range e.reading.extras {
			if first[c.text] == nil {
				first[c.text] = e
			}
		}
	}
	for _, svc := range s.Services() {
		e := b.claims.holder(claimKey{hostName, svc.Hostname})
		if e == nil || e.key.Source >= Told || e.reading.service.Import != nil || of[svc.Hostname] == nil {
			continue
		}
		var want, got []string
		for _, c := range of[svc.Hostname].reading.extras {
			if !has[c.text] && first[c.text] == of[svc.Hostname] {
				want = append(want, c.text)
			}
		}
		if svc.Import != nil {
			got = slices.Clone(svc.Import.Aliases)
			for _, v := range svc.Import.VIPs {
				got = append(got, v.String())
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("beside %s there are %q, want %q", svc.Hostname, got, want)
		}
		if len(got) > 0 {
			count++
		}
	}
	return count
}

// checkNames goes through all services for who has each name and virtual address.
func checkNames(t *rapid.T, b *Builder, s *mesh.Snapshot) {
	best := map[claimKey]*entry{}
	strength := map[claimKey]int{}
	for _, e := range b.entries {
		if e.key.Kind != KindService || !e.in {
			continue
		}
		for _, c := range append(slices.Clone(e.reading.claims), e.reading.extras...) {
			k, n := claimKey{aliasName, c.text}, slices.Index(slices.Concat(namesOfServices, namesByShares), c.what)
			switch c.what {
			case virtualAddress:
				k.what = virtualAddress
			case derivedName, aliasName: // the earlier source's first
				n += 2 * int(e.key.Source)
			case sharedHost:
				n += 100
			case sharedDerived, sharedAlias: // likewise
				n += 100 + 2*e.reading.rank
			}
			if best[k] == nil || n < strength[k] || n == strength[k] && e.before(best[k]) < 0 {
				best[k], strength[k] = e, n
			}
		}
	}
	for k, e := range best {
		svc := s.Service(k.text)
		if k.what == virtualAddress {
			svc = s.ServiceAt(netip.MustParseAddr(k.text))
		}
		if svc == nil || svc.Hostname != e.reading.service.Hostname {
			t.Fatalf("%s leads to %v, want %s", k.text, svc, e.key)
		}
	}
}

// crowded draws configs in which everybody claims the same few things, and what
// one loses another gets.
func crowded() *rapid.Generator[Config] {
	return rapid.Custom(func(t *rapid.T) Config {
		network := rapid.SampledFrom([]string{"east", "west"})
		some := func(name string, from ...string) []string {
			return rapid.SliceOfNDistinct(rapid.SampledFrom(from), 0, 2, rapid.ID[string]).Draw(t, name)
		}
		var c Config
		for _, n := range some("networks", "east", "west", "West") {
			c.Networks = append(c.Networks, Network{Name: n})
		}
		for i := range rapid.IntRange(0, 4).Draw(t, "gateways") {
			at := func(name string) netip.AddrPort {
				return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(rapid.IntRange(1, 3).Draw(t, name))}), 15008)
			}
			c.Gateways = append(c.Gateways, Gateway{Name: fmt.Sprint("gw-", i/2), Network: network.Draw(t, "network"), Address: at("address"), FederationAddress: at("federation")})
		}
		hosts := []string{"s0.default.svc.cluster.local", "s1.default.svc.cluster.local", "s0.default.mesh.internal", "x.example.org", "y.example.org"}
		for i := range rapid.IntRange(0, 5).Draw(t, "services") {
			s := Service{Name: fmt.Sprint("s", i), Global: rapid.Bool().Draw(t, "global"), Aliases: some("aliases", hosts...), Ports: []ServicePort{{Port: 80}}}
			if rapid.Bool().Draw(t, "named") {
				s.Hostname = rapid.SampledFrom(hosts).Draw(t, "hostname")
			}
			for _, v := range some("vips", "240.0.0.1", "240.0.0.2") {
				s.VIPs = append(s.VIPs, netip.MustParseAddr(v))
			}
			c.Services = append(c.Services, s)
		}
		for i := range rapid.IntRange(0, 4).Draw(t, "shares") {
			x := Share{Network: network.Draw(t, "network"), Name: fmt.Sprint("s", i/2), Aliases: some("aliases", hosts...), Scope: rapid.SampledFrom([]string{"", "segment", "global-only", "cluster"}).Draw(t, "scope"),
				TrafficDistribution: rapid.SampledFrom([]string{"", "PreferClose"}).Draw(t, "distribution"), Created: time.Unix(rapid.Int64Range(0, 2).Draw(t, "created"), 0).UTC(), Identities: some("identities", "spiffe://x/a", "spiffe://y/b", "nobody")}
			if rapid.Bool().Draw(t, "named") {
				x.Hostname = rapid.SampledFrom(hosts).Draw(t, "hostname")
			}
			for _, p := range some("ports", "80", "81", "82") {
				n, _ := strconv.ParseUint(p, 10, 16)
				x.Ports = append(x.Ports, SharePort{Port: uint16(n)})
			}
			c.Shares = append(c.Shares, x)
		}
		for i := range rapid.IntRange(0, 6).Draw(t, "workloads") {
			w := Workload{UID: fmt.Sprint("w", rapid.IntRange(max(0, i-1), i).Draw(t, "uid")), Network: network.Draw(t, "network"), Node: nodeOfDraws, State: rapid.SampledFrom([]string{"ready", "notReady"}).Draw(t, "state"), Services: some("member", hosts...)}
			for _, a := range some("addresses", "10.0.0.1", "10.0.0.2", "10.0.0.3") {
				w.Addresses = append(w.Addresses, netip.MustParseAddr(a))
			}
			c.Workloads = append(c.Workloads, w)
		}
		for range rapid.IntRange(0, 3).Draw(t, "policies") {
			c.Policies = append(c.Policies, Policy{"apiVersion": "security.istio.io/v1", "kind": rapid.SampledFrom([]string{"AuthorizationPolicy", "PeerAuthentication", "Gateway"}).Draw(t, "kind"),
				"metadata": map[string]any{"name": rapid.SampledFrom([]string{"p", "q"}).Draw(t, "name")}, "spec": map[string]any{"action": rapid.SampledFrom([]string{"DENY", "ALLOW", "AUDIT"}).Draw(t, "action")}})
		}
		return c
	})
}

func lines(f map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(&b, "%s: %s\n", k, f[k])
	}
	return b.String()
}
