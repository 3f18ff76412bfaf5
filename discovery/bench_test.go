package discovery

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// city is a mesh of ten networks whose pods are members of two services each.
func city(pods, services int) Config {
	c := DefaultConfig()
	for n := range 10 {
		c.Networks = append(c.Networks, Network{Name: fmt.Sprint("network-", n)})
		for g := range 2 {
			c.Gateways = append(c.Gateways, Gateway{Name: fmt.Sprint("gw-", g), Network: fmt.Sprint("network-", n), Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, byte(n), byte(g + 1)}), 15008)})
		}
	}
	host := func(i int) string {
		return fmt.Sprintf("svc-%d.ns-%d.svc.cluster.local", i%services, i%services%50)
	}
	for s := range services {
		c.Services = append(c.Services, Service{Name: fmt.Sprint("svc-", s), Namespace: fmt.Sprint("ns-", s%50), Global: true,
			VIPs: []netip.Addr{netip.AddrFrom4([4]byte{240, 240, byte(s >> 8), byte(s)})}, Ports: []ServicePort{{Name: "http", Port: 80, TargetPort: 8080}}})
	}
	for p := range pods {
		c.Workloads = append(c.Workloads, Workload{UID: fmt.Sprintf("8f2c1d3e-0000-4000-8000-%012d", p), Namespace: fmt.Sprint("ns-", p%50), ServiceAccount: fmt.Sprint("sa-", p%services),
			Network: fmt.Sprint("network-", p%10), Node: fmt.Sprint("node-", p/30), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(p >> 16), byte(p >> 8), byte(p)})},
			Services: []string{host(p), host(p*7 + 1)}})
	}
	return c
}

// One pod of 50 000 becomes ready or not, from its record to the next snapshot:
// the budget is 1 ms of CPU. "everything" is the same mesh read anew.
func BenchmarkOnePodChanges(b *testing.B) {
	c := city(50_000, 5_000)
	b.Run("builder", func(b *testing.B) {
		builder := NewBuilder(0)
		builder.Apply(c.List().changes()...)
		builder.Commit()
		b.ReportAllocs()
		defer reportCPU(b)()
		ready, i := false, 0
		for b.Loop() {
			if i += 7919; i >= len(c.Workloads) {
				i, ready = i-len(c.Workloads), !ready
			}
			w := c.Workloads[i]
			w.Ready = &ready
			builder.Apply(Change{Key: Key{Kind: KindWorkload, Name: w.UID}, Record: w})
			if _, changes, _ := builder.Commit(); len(changes.Workloads) > 1 || len(changes.Services) > 2 {
				b.Fatal(changes)
			}
		}
	})
	b.Run("everything", func(b *testing.B) {
		b.ReportAllocs()
		defer reportCPU(b)()
		for b.Loop() {
			if _, problems := Build(1, c); len(problems) > 0 {
				b.Fatal(problems[0])
			}
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

// One pod that changes costs the same in a mesh ten times as large, but for
// another level of each index.
func TestOneChangeCostsTheSameInALargeMesh(t *testing.T) {
	cost := func(pods, services int) float64 {
		c := city(pods, services)
		b := NewBuilder(0)
		b.Apply(c.List().changes()...)
		b.Commit()
		ready, i := false, 0
		return testing.AllocsPerRun(50, func() {
			i += 31
			w := c.Workloads[i]
			w.Ready = &ready
			b.Apply(Change{Key: Key{Kind: KindWorkload, Name: w.UID}, Record: w})
			b.Commit()
		})
	}
	if small, large := cost(2_000, 200), cost(20_000, 2_000); large > 2*small {
		t.Errorf("%.0f allocations for one change among 20 000 pods, %.0f among 2 000", large, small)
	}
}

// The first build allocates some 33 times per pod. One by one through every index
// it would be 50 times, and take four times as long.
func TestAFirstBuildPutsEveryoneAtOnce(t *testing.T) {
	const pods = 5_000
	c := city(pods, 500)
	if n := testing.AllocsPerRun(3, func() { Build(1, c) }) / pods; n > 40 {
		t.Errorf("%.1f allocations per pod, want at most 40", n)
	}
}

// A process on one network lists the mesh anew, as it does when its file changes.
func BenchmarkListFor(b *testing.B) {
	c := city(50_000, 5_000)
	b.ReportAllocs()
	defer reportCPU(b)()
	for b.Loop() {
		c.ListFor("network-0")
	}
}
