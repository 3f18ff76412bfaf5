package nodeproxy

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// knownMesh is a mesh of ten networks of two gateways with services services that
// are on each of them: on the own one with local pods each, on the others with one.
func knownMesh(services, local int) discovery.Config {
	c := discovery.DefaultConfig()
	pods := 0
	pod := func(network, s int) {
		c.Workloads = append(c.Workloads, discovery.Workload{UID: fmt.Sprintf("8f2c1d3e-0000-4000-8000-%012d", pods), Name: fmt.Sprintf("svc-%d-7d9f8c6b5-%05d", s, pods),
			Namespace: fmt.Sprint("ns-", s%50), ServiceAccount: fmt.Sprint("sa-", s), Network: fmt.Sprint("network-", network), Node: fmt.Sprint("node-", pods/30), Cluster: "c",
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(pods >> 16), byte(pods >> 8), byte(pods)})}, Locality: discovery.Locality{Region: "eu-west-1", Zone: "eu-west-1a"},
			Services: []string{fmt.Sprintf("svc-%d.ns-%d.svc.cluster.local", s, s%50)}})
		pods++
	}
	for s := range services {
		c.Services = append(c.Services, discovery.Service{Name: fmt.Sprint("svc-", s), Namespace: fmt.Sprint("ns-", s%50), Global: true,
			VIPs: []netip.Addr{netip.AddrFrom4([4]byte{240, 240, byte(s >> 8), byte(s)})}, Ports: []discovery.ServicePort{{Name: "http", Port: 80, TargetPort: 8080}}})
		for range local {
			pod(0, s)
		}
	}
	for n := range 10 {
		c.Networks = append(c.Networks, discovery.Network{Name: fmt.Sprint("network-", n)})
		for g := range 2 {
			c.Gateways = append(c.Gateways, discovery.Gateway{Name: fmt.Sprint("gw-", g), Network: fmt.Sprint("network-", n), Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, byte(n), byte(g + 1)}), 15008)})
		}
		for s := range services {
			if n > 0 {
				pod(n, s)
			}
		}
	}
	return c
}

// BenchmarkHeap is what a node proxy whose pods use 20 services holds of the mesh
// and its health after a collection, for which the budget is 25 MiB: when its discovery
// file lists those services alone, of 25 pods each on its own network; and when it lists
// 2 000 services on each of ten networks, of which those of others become shares.
func BenchmarkHeap(b *testing.B) {
	for _, v := range []struct {
		name            string
		services, local int
	}{{"what it uses", 20, 25}, {"whole mesh in the file", 2_000, 1}} {
		path := write(b, knownMesh(v.services, v.local))
		b.Run(v.name, func(b *testing.B) {
			for b.Loop() {
				before := heap()
				store := &discovery.Store{}
				watcher, err := file.OpenFor("network-0", path, store)
				if err != nil {
					b.Fatal(err)
				}
				snap := store.Current()
				var known []healthstream.Known
				for _, network := range snap.AllNetworks() {
					known = append(known, told(network, snap, 20)...)
				}
				b.ReportMetric(float64(heap()-before)/(1<<20), "heap-MiB")
				runtime.KeepAlive([]any{watcher, known})
			}
		})
	}
}

// write returns the path of a discovery file that says c.
func write(b *testing.B, c discovery.Config) string {
	var text strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	line("networks:")
	for _, n := range c.Networks {
		line("- {name: %s}", n.Name)
	}
	line("gateways:")
	for _, g := range c.Gateways {
		line("- {name: %s, network: %s, address: %q}", g.Name, g.Network, g.Address)
	}
	line("services:")
	for _, s := range c.Services {
		line("- {name: %s, namespace: %s, global: true, vips: [%s], ports: [{name: http, port: 80, targetPort: 8080}]}", s.Name, s.Namespace, s.VIPs[0])
	}
	line("workloads:")
	for _, w := range c.Workloads {
		line("- {uid: %s, name: %s, namespace: %s, serviceAccount: %s, network: %s, node: %s, cluster: %s, addresses: [%s], locality: {region: eu-west-1, zone: eu-west-1a}, services: [%s]}",
			w.UID, w.Name, w.Namespace, w.ServiceAccount, w.Network, w.Node, w.Cluster, w.Addresses[0], w.Services[0])
	}
	path := filepath.Join(b.TempDir(), "mesh.yaml")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	return path
}

// told is what two gateways of network say of used services: a node proxy is told of
// those alone.
func told(network string, snap *mesh.Snapshot, used int) (out []healthstream.Known) {
	for _, svc := range snap.Services()[:used] {
		n := uint32(1)
		if x, ok := snap.Share(svc, network); ok {
			n = x.Capacity
		}
		k := healthstream.Known{Summaries: map[uint16]federation.SummaryFact{80: {Service: svc.Hostname, Port: 80, Ready: n, Healthy: n, ReadyCapacity: 1, HealthyCapacity: 1}},
			Returned: map[uint16]map[mesh.EndpointID]time.Time{}}
		for g := range 2 {
			k.Deliveries = append(k.Deliveries, healthstream.Delivery{Gateway: fmt.Sprint("gw-", g), Health: map[uint16]record.Health{80: {Ready: n, Healthy: n, ReadyCapacity: 1, HealthyCapacity: 1}}})
		}
		out = append(out, k)
	}
	return out
}

// heap is what is in use after a collection, in bytes.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what finalizers let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
