package nodeproxy

import (
	"net/netip"
	"runtime"
	"testing"
	"weak"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Nobody connects to a listener any more: it keeps nothing of what discovery said when
// somebody last did.
func TestAListenerAtRestHoldsNoOldSnapshot(t *testing.T) {
	cfg := DefaultConfig()
	free := netip.MustParseAddrPort("127.0.0.1:0")
	cfg.Admin.Address = free
	p := newProxy(cfg, zerolog.Nop())
	defer p.stop()
	var old []weak.Pointer[mesh.Snapshot]
	var listeners []refuse
	for i := range 50 {
		snap := mesh.NewSnapshot(uint64(i+1), mesh.Parts{})
		old = append(old, weak.Make(snap))
		p.store.Swap(snap)
		r := p.refusal(Outbound{Workload: "shop", Listen: free, To: "hello.default.svc.cluster.local:80"})
		if end := r(0); end != nil { // one connection, and then no more
			t.Fatal("refused")
		}
		listeners = append(listeners, r)
	}
	p.store.Swap(mesh.NewSnapshot(1000, mesh.Parts{}))
	runtime.GC()
	runtime.GC() // what the first one found in a register or on a stack
	held := 0
	for _, w := range old {
		if w.Value() != nil {
			held++
		}
	}
	if held > 2 {
		t.Errorf("%d old snapshots of discovery are held by %d listeners at rest", held, len(listeners))
	}
	runtime.KeepAlive(listeners)
}
