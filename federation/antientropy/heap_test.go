package antientropy

import (
	"runtime"
	"testing"
	"time"
)

// BenchmarkFederationHeap is what each gateway of ten networks of two gateways
// with 2 000 services each holds of all records, after a collection.
func BenchmarkFederationHeap(b *testing.B) {
	for b.Loop() {
		before := inUse()
		w := newWorld(b, "heap", 10, 2)
		for _, s := range w.sites {
			w.start(s)
		}
		for _, s := range w.sites {
			for n := range 2_000 {
				for _, err := range []error{s.node.Publisher().Put(export(n), s.time(w)), s.node.Publisher().Put(healthy(n, 10), s.time(w))} {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
			s.node.Publisher().Synchronise()
			w.tick(s)
		}
		w.run(20 * time.Second)
		if err := w.agree(); err != nil {
			b.Fatal(err)
		}
		w.queue = nil // messages on their way are nobody's
		b.ReportMetric(float64(inUse()-before)/float64(len(w.sites))/(1<<20), "heap-MiB")
		runtime.KeepAlive(w)
	}
}

func inUse() uint64 {
	runtime.GC()
	runtime.GC() // what finalizers let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
