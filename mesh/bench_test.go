package mesh

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// city is a mesh of pods pods on ten networks, each a member of two services.
func city(pods, services int) (*Snapshot, Parts) {
	p := Parts{Members: map[string][]string{}}
	for i := range services {
		p.Services = append(p.Services, &Service{Hostname: fmt.Sprintf("svc-%d.ns-%d.svc.cluster.local", i, i%50), Aliases: []string{fmt.Sprintf("svc-%d.ns-%d.mesh.internal", i, i%50)},
			VIPs: []netip.Addr{netip.AddrFrom4([4]byte{240, 240, byte(i >> 8), byte(i)})}, Ports: []Port{{Name: "http", Service: 80, Target: 8080}}})
	}
	for i := range pods {
		w := cityPod(i, services)
		p.Workloads = append(p.Workloads, w)
		for _, h := range cityServices(p.Services, i) {
			p.Members[h] = append(p.Members[h], w.UID)
		}
	}
	return NewSnapshot(1, p), p
}

func cityPod(i, services int) *Workload {
	w := &Workload{UID: fmt.Sprintf("8f2c1d3e-0000-4000-8000-%012d", i), Network: fmt.Sprint("network-", i%10), Node: fmt.Sprint("node-", i/30), Capacity: 1,
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}, Identity: spiffeid.RequireFromPathf(spiffeid.RequireTrustDomainFromString("x"), "/sa-%d", i%services)}
	w.Endpoint = EndpointIDOf(w.Network, w.UID)
	return w
}

func cityServices(all []*Service, i int) []string {
	return []string{all[i%len(all)].Hostname, all[(i*7+1)%len(all)].Hostname}
}

// One pod of 50 000 changes its state: the budget is 1 ms. "from scratch" is
// what each change cost before.
func BenchmarkOnePodChanges(b *testing.B) {
	const pods, services = 50_000, 5_000
	s, parts := city(pods, services)
	b.Run("edit", func(b *testing.B) {
		b.ReportAllocs()
		defer reportCPU(b)()
		i := 0
		for b.Loop() {
			i = (i + 7919) % pods
			w := *s.Workload(parts.Workloads[i].UID)
			w.State ^= NotReady
			e := s.Edit()
			e.PutWorkload(&w, cityServices(parts.Services, i))
			s = e.Snapshot(s.Revision + 1)
		}
	})
	b.Run("from scratch", func(b *testing.B) {
		b.ReportAllocs()
		defer reportCPU(b)()
		for b.Loop() {
			NewSnapshot(2, parts)
		}
	})
}

// reportCPU reports what the process has used from now on, the collector's work
// included: on a busy machine the time that passes says little.
func reportCPU(b *testing.B) (done func()) {
	used := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	began := used()
	return func() { b.ReportMetric(float64((used()-began).Microseconds())/float64(b.N), "cpu-µs/op") }
}

func BenchmarkLookup(b *testing.B) {
	const pods, services = 50_000, 5_000
	s, parts := city(pods, services)
	b.ReportAllocs()
	defer reportCPU(b)()
	i := 0
	for b.Loop() {
		i = (i + 7919) % pods
		w := s.WorkloadAt(parts.Workloads[i].Network, parts.Workloads[i].Addresses[0])
		if s.WorkloadByEndpoint(w.Endpoint) != w {
			b.Fatal("two answers")
		}
	}
}

func TestLookupsDoNotAllocate(t *testing.T) {
	s, parts := city(2_000, 100)
	w, svc := parts.Workloads[17], parts.Services[17]
	if n := testing.AllocsPerRun(100, func() {
		_, _, _ = s.Workload(w.UID), s.WorkloadAt(w.Network, w.Addresses[0]), s.WorkloadByEndpoint(w.Endpoint)
		_, _, _, _ = s.Service(svc.Hostname), s.Service(svc.Aliases[0]), s.ServiceAt(svc.VIPs[0]), s.ServicesOf(w.UID)
		_, _, _, _ = s.Members(svc, w.Network), s.Networks(svc), s.Identities(svc, ""), s.Identities(svc, w.Network)
		_, _ = s.OnNode(w.Network, w.Node), s.Declares(w.UID, 8080)
	}); n != 0 {
		t.Errorf("%.0f allocations, want none", n)
	}
}

// What a change of one pod allocates grows with the services of that pod, not
// with the mesh: ten times the pods and services, at most another level of each
// index.
func TestOneChangeCostsTheSameInALargeMesh(t *testing.T) {
	cost := func(pods, services int) float64 {
		s, parts := city(pods, services)
		i := 0
		return testing.AllocsPerRun(50, func() {
			i += 31
			w := *s.Workload(parts.Workloads[i].UID)
			w.State ^= NotReady
			e := s.Edit()
			e.PutWorkload(&w, cityServices(parts.Services, i))
			s = e.Snapshot(s.Revision + 1)
		})
	}
	small, large := cost(2_000, 200), cost(20_000, 2_000)
	if large > 2*small {
		t.Errorf("%.0f allocations for one change among 20 000 pods, %.0f among 2 000", large, small)
	}
}
