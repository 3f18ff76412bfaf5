package pods

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// While this process has no descriptors to ask with, it does not take a process that began after it, or listens beside
// it, for gone: neither when it has other rules, nor when a pod leaves or a listener has ended.
func TestWhatCannotBeAskedOfOthersIsNotKnown(t *testing.T) {
	const itself = "/proc/self/ns/net"
	ns, err := podns.Open(itself)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const uid = "shop"
	next := capture.Setter{Began: 2, Socket: 7}
	h := &Pod{uid: uid, address: netip.MustParseAddr("127.0.0.1"), place: place{ns: ns, path: itself}, incoming: Listeners{Tunnels: l.(*net.TCPListener)}, left: true, beside: true, setBy: next, sharers: []uint64{7, 8}}
	var draining atomic.Bool
	p := alone()
	p.Draining = draining.Load
	c := &Set{p: p, began: 1, held: map[string]*Pod{uid: h}, gone: map[chan struct{}]struct{}{}, failing: map[string]*lack{}}
	for n := range 2 { // the second is one that opening a socket in a namespace takes beside it
		withFiles(t, n, func() {
			if younger, err := c.younger(h); !podns.Lacking(err) {
				t.Errorf("with %d descriptors: younger %v, %v", n, younger, err)
			}
			if others, err := c.others(h); !podns.Lacking(err) {
				t.Errorf("with %d descriptors: others %v, %v", n, others, err)
			}
			for _, stops := range []bool{false, true} {
				draining.Store(stops)
				if released, err := c.releases(h, true); !podns.Lacking(err) {
					t.Fatalf("with %d descriptors, draining %v: a pod that is left is released: %v, %v", n, stops, released, err)
				}
				c.keep(context.Background(), map[string]*mesh.Workload{}, capture.Rules{}, nil, time.Now())
				if c.works.wait(); c.Get(uid) != h {
					t.Fatalf("with %d descriptors, draining %v: the pod was left without a look", n, stops)
				}
			}
			draining.Store(false)
			if c.bereft(h) || len(h.sharers) != 2 {
				t.Errorf("with %d descriptors: a listener has ended, of which nothing is known", n)
			}
			if c.replace(h, capture.Rules{Owner: "others"}); !h.left || !h.unsure || h.rules.Owner != "" {
				t.Errorf("with %d descriptors: rules were set without knowing whose they are: left %v, unsure %v, rules %v", n, h.left, h.unsure, h.rules)
			}
		})
	}
}

// withFiles calls f while this process can open n files at the same time.
func withFiles(t *testing.T, n int, f func()) {
	t.Helper()
	limit := uint64(0)
	for ; n > 0; limit++ {
		if _, err := unix.FcntlInt(uintptr(limit), unix.F_GETFD, 0); err != nil {
			n--
		}
	}
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}
