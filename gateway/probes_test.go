package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// listing is discovery as a test wants it, and who was asked at which address.
type listing struct {
	mu    sync.Mutex
	pods  map[mesh.EndpointID]*mesh.Workload
	asked map[netip.Addr]int
}

func (l *listing) set(w *mesh.Workload) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods[w.Endpoint] = w
}

func (l *listing) listed(id mesh.EndpointID) *mesh.Workload {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pods[id]
}

func (l *listing) ask(_ context.Context, w *mesh.Workload) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked[w.Addresses[0]]++
	return errors.New("no route to host")
}

func (l *listing) total() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.asked {
		n += k
	}
	return n
}

func podAt(i int, addr string) *mesh.Workload {
	uid := fmt.Sprint("west/default/hello-", i)
	return &mesh.Workload{UID: uid, Network: "west", Endpoint: mesh.EndpointIDOf("west", uid), Capacity: 1, State: mesh.Ready, Addresses: []netip.Addr{netip.MustParseAddr(addr)}}
}

func probing(t *testing.T, test func(*listing, *backends)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := &listing{pods: map[mesh.EndpointID]*mesh.Workload{}, asked: map[netip.Addr]int{}}
		b := newBackends("west", DefaultConfig().OutlierDetection, nothingWitnessed,
			reprobe.New[mesh.EndpointID](ctx, hopSchedule), l.ask, l.listed, zerolog.Nop(), func(*mesh.Workload) {})
		test(l, b)
		cancel()
		b.prober.Wait()
	})
}

func TestPodsThatAreGoneAreAskedNoMore(t *testing.T) {
	probing(t, func(l *listing, b *backends) {
		for i := range 200 { // a rolling update
			w := podAt(i, fmt.Sprintf("10.1.2.%d", i))
			l.set(w)
			b.doubt(w)
		}
		time.Sleep(2 * time.Second) // bubble time
		l.mu.Lock()
		clear(l.pods)
		l.mu.Unlock()
		b.forget(&mesh.Snapshot{}, time.Now())
		synctest.Wait()
		before := l.total()
		if before < 200 {
			t.Fatalf("%d questions to 200 pods that do not answer", before)
		}
		b.doubt(podAt(7, "10.1.2.7")) // a connection to it ends late
		b.release(b.leaseOf(podAt(8, "10.1.2.8")), health.Failure, "unreachable", time.Now())
		time.Sleep(time.Minute)
		if now := l.total(); now != before || b.prober.Active() != 0 || b.Remembered() != 0 {
			t.Errorf("%d more questions, %d series, and %d things remembered of pods that are gone; want none", now-before, b.prober.Active(), b.Remembered())
		}
	})
}

func TestAPodThatMovedIsAskedWhereItIs(t *testing.T) {
	probing(t, func(l *listing, b *backends) {
		l.set(podAt(1, "10.1.2.1"))
		b.doubt(podAt(1, "10.1.2.1"))
		time.Sleep(time.Second)
		l.set(podAt(1, "10.1.2.99"))
		l.mu.Lock()
		before := l.asked[netip.MustParseAddr("10.1.2.1")]
		l.mu.Unlock()
		time.Sleep(10 * time.Second)
		l.mu.Lock()
		defer l.mu.Unlock()
		if old := l.asked[netip.MustParseAddr("10.1.2.1")]; old != before || l.asked[netip.MustParseAddr("10.1.2.99")] == 0 {
			t.Errorf("the old address is asked %d times more, the new one %d times", old-before, l.asked[netip.MustParseAddr("10.1.2.99")])
		}
	})
}
