package mesh

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"pgregory.net/rapid"
)

// plain is the slow obvious twin of a Snapshot: lists, and every question is a
// scan.
type plain struct {
	workloads map[string]*Workload
	services  map[string]*Service
	member    map[string][]string // UID → hostnames
	gateways  map[string][]*Gateway
	networks  []Network
	told      map[string]map[string]*Export // hostname → network → what a record says
}

func newPlain() *plain {
	return &plain{workloads: map[string]*Workload{}, services: map[string]*Service{}, member: map[string][]string{}, gateways: map[string][]*Gateway{}, told: map[string]map[string]*Export{}}
}

func (p *plain) members(host, network string) (out []*Workload) {
	for _, uid := range slices.Sorted(maps.Keys(p.workloads)) {
		w := p.workloads[uid]
		if (network == "" || w.Network == network) && slices.Contains(p.member[uid], host) && p.services[host] != nil {
			out = append(out, w)
		}
	}
	return out
}

func (p *plain) identities(host, network string) (out []spiffeid.ID) {
	for _, w := range p.members(host, network) {
		out = append(out, w.Identity)
	}
	for n, x := range p.told[host] {
		if (network == "" || n == network) && len(p.members(host, n)) == 0 {
			out = append(out, x.Identities...)
		}
	}
	slices.SortFunc(out, compareIDs)
	return slices.Compact(out)
}

// share is what network has of host, from scratch.
func (p *plain) share(host, network string) *Export {
	if members := p.members(host, network); len(members) > 0 {
		return shareOf(p.services[host], members)
	}
	return p.told[host][network]
}

// The small world that changes are drawn from: names, addresses and virtual
// addresses move between objects, but are never shared at one time.
var (
	modelNetworks = []string{"east", "west"}
	modelNodes    = []string{"", "n1", "n2"}
	modelHosts    = []string{"a.svc", "b.svc", "c.svc", "d.svc"}
	modelAliases  = []string{"x.alias", "Y.alias", "z.alias"}
	modelUIDs     = []string{"p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"}
)

// change draws one change and makes it in both.
func (p *plain) change(t *rapid.T, e *Edit) {
	host := rapid.SampledFrom(modelHosts).Draw(t, "host")
	uid := rapid.SampledFrom(modelUIDs).Draw(t, "uid")
	switch rapid.SampledFrom([]string{"put", "put", "put", "delete", "service", "unservice", "shares", "shares", "gateways", "networks"}).Draw(t, "change") {
	case "put":
		w, hosts := p.drawWorkload(t, uid)
		p.workloads[uid], p.member[uid] = w, slices.DeleteFunc(slices.Clone(hosts), func(h string) bool { return p.services[h] == nil })
		e.PutWorkload(w, hosts)
	case "delete":
		delete(p.workloads, uid)
		delete(p.member, uid)
		e.DeleteWorkload(uid)
	case "service":
		svc := &Service{Hostname: host, Name: fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "name"))}
		for i, a := range modelAliases {
			taken := slices.ContainsFunc(slices.Collect(maps.Values(p.services)), func(o *Service) bool { return o.Hostname != host && slices.Contains(o.Aliases, a) })
			if !taken && rapid.Bool().Draw(t, "alias") {
				svc.Aliases = append(svc.Aliases, a)
				svc.VIPs = append(svc.VIPs, netip.AddrFrom4([4]byte{240, 0, 0, byte(i)}))
			}
		}
		p.services[host] = svc
		e.PutService(svc)
	case "unservice":
		delete(p.services, host)
		for uid, hosts := range p.member {
			p.member[uid] = slices.DeleteFunc(hosts, func(h string) bool { return h == host })
		}
		delete(p.told, host)
		e.DeleteService(host)
	case "shares":
		var list []Told
		told := map[string]*Export{}
		for _, n := range modelNetworks {
			if rapid.Bool().Draw(t, "told") {
				told[n] = &Export{Hostname: host, Capacity: rapid.Uint32Range(0, 2).Draw(t, "capacity"), Identities: []spiffeid.ID{spiffeid.RequireFromString("spiffe://x/" + rapid.SampledFrom([]string{"a", "z"}).Draw(t, "identity"))}}
				list = append(list, Told{n, told[n]})
			}
		}
		changed := p.services[host] != nil && !reflect.DeepEqual(p.told[host], told) && len(p.told[host])+len(told) > 0
		if p.services[host] != nil {
			p.told[host] = told
		}
		if e.TellShares(host, list) != changed {
			t.Fatalf("shares of %s changed: %t, want %t", host, !changed, changed)
		}
	case "gateways":
		network := rapid.SampledFrom(modelNetworks).Draw(t, "network")
		var list []*Gateway
		for i := range rapid.IntRange(0, 3).Draw(t, "gateways") {
			list = append(list, &Gateway{Name: fmt.Sprint("gw-", i), Network: network})
		}
		delete(p.gateways, network)
		if len(list) > 0 {
			p.gateways[network] = list
		}
		e.SetGateways(network, slices.Clone(list))
	case "networks":
		p.networks = nil
		for _, n := range modelNetworks {
			if rapid.Bool().Draw(t, "listed") {
				p.networks = append(p.networks, Network{Name: n, Nodes: []string{"n9"}})
			}
		}
		e.SetNetworks(slices.Clone(p.networks))
	}
}

func (p *plain) drawWorkload(t *rapid.T, uid string) (*Workload, []string) {
	w := &Workload{
		UID: uid, Network: rapid.SampledFrom(modelNetworks).Draw(t, "network"), Node: rapid.SampledFrom(modelNodes).Draw(t, "node"),
		State: State(rapid.IntRange(0, 2).Draw(t, "state")), Capacity: uint32(rapid.IntRange(1, 9).Draw(t, "capacity")),
		Identity: spiffeid.RequireFromString("spiffe://x/" + rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "identity")),
	}
	w.Endpoint = EndpointIDOf(w.Network, uid)
	for i := range 4 {
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		taken := slices.ContainsFunc(slices.Collect(maps.Values(p.workloads)), func(o *Workload) bool {
			return o.UID != uid && o.Network == w.Network && slices.Contains(o.Addresses, a)
		})
		if !taken && rapid.Bool().Draw(t, "address") {
			w.Addresses = append(w.Addresses, a)
		}
	}
	return w, rapid.SliceOfDistinct(rapid.SampledFrom(modelHosts), rapid.ID[string]).Draw(t, "services")
}

// check asks s everything and compares with the twin.
func (p *plain) check(t *rapid.T, s *Snapshot) {
	want := func(what string, got, want any) {
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%s: got %v, want %v", what, got, want)
		}
	}
	want("UIDs", uids(s.Workloads()), slices.Sorted(maps.Keys(p.workloads)))
	want("number of workloads", s.NumWorkloads(), len(p.workloads))
	want("number of services", s.NumServices(), len(p.services))
	for _, uid := range modelUIDs {
		w := p.workloads[uid]
		if s.Workload(uid) != w {
			t.Fatalf("workload %s: got %v, want %v", uid, s.Workload(uid), w)
		}
		for _, n := range modelNetworks {
			var here *Workload
			if w != nil && w.Network == n {
				here = w
			}
			if s.WorkloadByEndpoint(EndpointIDOf(n, uid)) != here {
				t.Fatalf("endpoint of %s on %s leads elsewhere", uid, n)
			}
		}
		var hosts []string
		for _, svc := range s.ServicesOf(uid) {
			if svc != p.services[svc.Hostname] {
				t.Fatalf("%s is a member of an earlier %s", uid, svc.Hostname)
			}
			hosts = append(hosts, svc.Hostname)
		}
		want("services of "+uid, hosts, slices.Sorted(slices.Values(p.member[uid])))
	}
	for _, n := range modelNetworks {
		for i := range 4 {
			a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
			var at *Workload
			for _, w := range p.workloads {
				if w.Network == n && slices.Contains(w.Addresses, a) {
					at = w
				}
			}
			if s.WorkloadAt(n, a) != at {
				t.Fatalf("%s on %s leads elsewhere", a, n)
			}
		}
		nodes := map[string]bool{}
		for _, l := range p.networks {
			for _, node := range l.Nodes {
				nodes[node] = nodes[node] || l.Name == n
			}
		}
		for _, node := range modelNodes[1:] {
			var on []string
			for _, uid := range slices.Sorted(maps.Keys(p.workloads)) {
				if w := p.workloads[uid]; w.Network == n && w.Node == node {
					on, nodes[node] = append(on, uid), true
				}
			}
			want("workloads on "+n+"/"+node, uids(s.OnNode(n, node)), on)
		}
		maps.DeleteFunc(nodes, func(_ string, here bool) bool { return !here })
		want("nodes of "+n, s.Nodes(n), slices.Sorted(maps.Keys(nodes)))
		want("gateways of "+n, len(s.Gateways(n)), len(p.gateways[n]))
		want("listed "+n, s.HasNetwork(n), slices.ContainsFunc(p.networks, func(l Network) bool { return l.Name == n }))
	}
	want("gateway networks", s.GatewayNetworks(), slices.Sorted(maps.Keys(p.gateways)))
	p.checkServices(t, s, want)
}

func (p *plain) checkServices(t *rapid.T, s *Snapshot, want func(string, any, any)) {
	var hosts []string
	for _, svc := range s.Services() {
		hosts = append(hosts, svc.Hostname)
	}
	want("hostnames", hosts, slices.Sorted(maps.Keys(p.services)))
	for i, a := range modelAliases {
		var has *Service
		for _, svc := range p.services {
			if slices.Contains(svc.Aliases, a) {
				has = svc
			}
		}
		if s.Service(strings.ToUpper(a)) != has || s.ServiceAt(netip.AddrFrom4([4]byte{240, 0, 0, byte(i)})) != has {
			t.Fatalf("%s or its address leads elsewhere", a)
		}
	}
	for _, h := range modelHosts {
		svc := p.services[h]
		if s.Service(h) != svc {
			t.Fatalf("%s leads elsewhere", h)
		}
		if svc == nil {
			svc = &Service{Hostname: h}
		}
		var networks []string
		for _, n := range modelNetworks {
			members := p.members(h, n)
			want("members of "+h+" on "+n, uids(s.Members(svc, n)), uids(members))
			for i, w := range s.Members(svc, n) {
				if w != members[i] {
					t.Fatalf("member %s of %s is an earlier one", w.UID, h)
				}
			}
			want("identities of "+h+" on "+n, s.Identities(svc, n), p.identities(h, n))
			share, ok := s.Share(svc, n)
			if x := p.share(h, n); ok != (x != nil) || ok && (!reflect.DeepEqual(share.Export, x) || share.Network != n || len(share.Gateways) != len(p.gateways[n])) {
				t.Fatalf("share of %s on %s: got %+v, want %+v", h, n, share, x)
			}
			if again, _ := s.Share(svc, n); again.Export != share.Export {
				t.Fatalf("share of %s on %s is another one each time", h, n)
			}
			if !reflect.DeepEqual(s.Told(svc, n), p.told[h][n]) {
				t.Fatalf("told of %s on %s: got %+v, want %+v", h, n, s.Told(svc, n), p.told[h][n])
			}
			if p.share(h, n) != nil {
				networks = append(networks, n)
			}
		}
		want("networks of "+h, s.Networks(svc), networks)
		want("identities of "+h, s.Identities(svc, ""), p.identities(h, ""))
	}
}

func (p *plain) clone() *plain {
	c := *p
	c.workloads, c.services, c.member, c.gateways = maps.Clone(p.workloads), maps.Clone(p.services), map[string][]string{}, maps.Clone(p.gateways)
	c.told = maps.Clone(p.told)
	for uid, hosts := range p.member {
		c.member[uid] = slices.Clone(hosts)
	}
	return &c
}

// After any changes, in batches of any size, every question has the answer that
// a scan gives; and no snapshot made on the way has changed since.
func TestEditedSnapshotIsTheOneFromScratch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type version struct {
			s    *Snapshot
			twin *plain
		}
		twin, s := newPlain(), new(Snapshot)
		var versions []version
		e := s.Edit()
		for i := range rapid.IntRange(1, 8).Draw(t, "batches") {
			if rapid.Bool().Draw(t, "new edit") {
				e = s.Edit()
			}
			for range rapid.IntRange(0, 6).Draw(t, "changes") {
				twin.change(t, e)
			}
			s = e.Snapshot(uint64(i))
			versions = append(versions, version{s, twin.clone()})
		}
		for _, v := range versions {
			v.twin.check(t, v.s)
		}
	})
}

// The indexes at sizes where they have several levels and chunks, with keys
// whose hashes collide.
func TestTrieAndListAtSize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tr trie[collider, int]
		var li list[*Service]
		want := map[collider]int{}
		type version struct {
			tr   trie[collider, int]
			li   list[*Service]
			want map[collider]int
		}
		var versions []version
		for range rapid.IntRange(1, 4).Draw(t, "batches") {
			by := new(token)
			from, n := rapid.IntRange(0, 2000).Draw(t, "from"), rapid.IntRange(0, 1500).Draw(t, "n")
			remove := rapid.Bool().Draw(t, "remove")
			for i := from; i < from+n; i++ {
				k := collider(i * 7919 % 3001)
				if remove {
					delete(want, k)
					tr.del(by, k)
					li.del(by, k.String())
				} else {
					want[k] = i
					tr.put(by, k, i)
					li.put(by, &Service{Hostname: k.String(), Name: fmt.Sprint(i)})
				}
			}
			versions = append(versions, version{tr, li, maps.Clone(want)})
		}
		for _, v := range versions {
			if v.tr.n != len(v.want) || v.li.n != len(v.want) || len(v.li.slice()) != len(v.want) {
				t.Fatalf("%d and %d entries, want %d", v.tr.n, v.li.n, len(v.want))
			}
			for k := range collider(3001) {
				if v.tr.get(k) != v.want[k] {
					t.Fatalf("%d: got %d, want %d", k, v.tr.get(k), v.want[k])
				}
			}
			if !maps.Equal(maps.Collect(v.tr.all()), v.want) {
				t.Fatal("the walk of the trie finds something else")
			}
			if !slices.IsSortedFunc(v.li.slice(), func(a, b *Service) int { return strings.Compare(a.Hostname, b.Hostname) }) {
				t.Fatal("the list is not sorted")
			}
			for svc := range v.li.all() {
				k, _ := strconv.Atoi(svc.Hostname)
				if svc.Name != fmt.Sprint(v.want[collider(k)]) {
					t.Fatalf("%s is %s in the list, want %d", svc.Hostname, svc.Name, v.want[collider(k)])
				}
			}
		}
	})
}

// collider has few hashes: of every eight keys, two share all 64 bits and more
// share the first.
type collider int

func (c collider) hash() uint64   { return uint64(c/2%4) | uint64(c/8)<<40 }
func (c collider) String() string { return fmt.Sprintf("%05d", int(c)) }
