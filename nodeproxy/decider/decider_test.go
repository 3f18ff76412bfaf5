package decider

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

const most = 3 // decisions of one verdict

var errKernel = errors.New("the kernel has no memory")

// world is a kernel with its rules, discovery and gateways, all of which a schedule changes.
type world struct {
	mu      sync.Mutex // guards all; no method that holds it waits
	t       *testing.T
	d       *Decider
	sets    map[capture.Verdict]map[netip.AddrPort]time.Time // until when
	mesh    map[netip.AddrPort]bool                          // by discovery
	hidden  map[netip.AddrPort]bool                          // the gateways know it, and discovery once they are asked
	own     bool                                             // gateways are asked
	busy    float64                                          // of questions that cannot be asked
	asked   map[netip.AddrPort]bool                          // the last question was
	leads   func(netip.AddrPort) bool                        // captured addresses
	fails   float64                                          // of changes
	out     map[netip.AddrPort]capture.Verdict               // what the last packet of a source met
	rng     *rand.Rand
	dropped int
	number  int // of the process
}

func (w *world) fail() error {
	if w.rng.Float64() < w.fails {
		return errKernel
	}
	return nil
}

// process is the kernel as one process sees it. That of an earlier one finds its sets no more.
type process struct {
	*world
	number int
}

func (p process) Decide(x capture.Decision) error {
	w := p.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.number != w.number {
		return errKernel
	}
	if err := w.fail(); err != nil {
		return err
	}
	if x.Verdict == capture.Direct && w.own && !w.asked[x.To] {
		w.t.Errorf("%v is decided direct, and the gateways were not asked", x.To)
	}
	set := w.sets[x.Verdict]
	w.expire()
	if _, has := set[x.To]; !has && len(set) >= most {
		if w.fails == 0 {
			w.t.Errorf("%v: the kernel has no room for %v", x.To, x.Verdict)
		}
		return errKernel
	}
	set[x.To] = time.Now().Add(x.For)
	if w.rng.Float64() < w.fails {
		return errKernel // and it was done
	}
	return nil
}

func (p process) Revoke(x capture.Decision) error {
	w := p.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.number != w.number {
		return nil
	}
	if err := w.fail(); err != nil {
		return err
	}
	delete(w.sets[x.Verdict], x.To)
	return nil
}

func (w *world) Send(p capture.FirstPacket) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.met(p.To); v != 0 {
		w.out[p.From] = v
	}
	return nil
}

func (w *world) expire() {
	for _, set := range w.sets {
		for to, until := range set {
			if !time.Now().Before(until) {
				delete(set, to)
			}
		}
	}
}

// verdict is what a packet meets: 0 if it is undecided.
func (w *world) verdict(to netip.AddrPort) capture.Verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.met(to)
}

func (w *world) met(to netip.AddrPort) capture.Verdict {
	w.expire()
	for _, v := range []capture.Verdict{capture.Refused, capture.Mesh, capture.Direct} {
		if _, has := w.sets[v][to]; has {
			return v
		}
	}
	return 0
}

func (w *world) Judge(to netip.AddrPort) (capture.Verdict, time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.mesh[to]:
		return capture.Mesh, time.Minute, false
	case w.leads(to):
		return capture.Refused, time.Second, w.own
	}
	return capture.Direct, time.Minute, w.own
}

func (w *world) Ask(ctx context.Context, to netip.AddrPort) (asked bool) {
	w.mu.Lock()
	wait := time.Duration(w.rng.Int64N(int64(time.Second)))
	asked = w.rng.Float64() >= w.busy
	w.asked[to] = asked
	w.mu.Unlock()
	if !asked {
		return false
	}
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hidden[to] {
		w.mesh[to] = true
		go w.review(to)
	}
	return true
}

func (w *world) Decided(v capture.Verdict) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v == capture.Dropped {
		w.dropped++
	}
}

// Under any schedule: once discovery knows that the mesh has a destination and decisions were reviewed, no packet to it goes
// out directly. No destination is decided direct without a question to the gateways, if there are any. And a connection that its kernel tries again is decided on, as discovery has it.
func TestDeciderModel(t *testing.T) {
	for range 60 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { schedule(t, seed) })
		})
		if t.Failed() {
			return
		}
	}
}

func schedule(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &world{t: t, rng: rng, own: rng.IntN(2) == 0, sets: map[capture.Verdict]map[netip.AddrPort]time.Time{}, mesh: map[netip.AddrPort]bool{}, hidden: map[netip.AddrPort]bool{}, asked: map[netip.AddrPort]bool{}, out: map[netip.AddrPort]capture.Verdict{}}
	for _, v := range []capture.Verdict{capture.Direct, capture.Mesh, capture.Refused} {
		w.sets[v] = map[netip.AddrPort]time.Time{}
	}
	if rng.IntN(2) == 0 {
		w.fails = 0.1
	}
	if rng.IntN(2) == 0 {
		w.busy = 0.3
	}
	w.leads = func(to netip.AddrPort) bool { return to.Addr().As4()[0] == 240 }
	destinations := make([]netip.AddrPort, 12)
	for i := range destinations {
		destinations[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{[]byte{10, 240}[i%2], 0, 0, byte(i / 4)}), uint16(80+i%4))
	}
	ctx, cancel := context.WithCancel(t.Context())
	start := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.number++
		for _, set := range w.sets {
			clear(set)
		}
		w.d = New(process{w, w.number}, w)
		w.d.most = most
	}
	start()
	draw := func(n int) int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return rng.IntN(n)
	}
	source := uint16(0)
	open := func(to netip.AddrPort) capture.FirstPacket {
		source++
		p := capture.FirstPacket{From: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, 9, 9}), source), To: to, Sequence: uint32(draw(1 << 30))}
		go w.retry(ctx, p)
		return p
	}
	pick := func() netip.AddrPort { return destinations[draw(len(destinations))] }
	for range 400 {
		switch draw(9) {
		case 0, 1, 2, 3:
			open(pick())
		case 4:
			time.Sleep(time.Duration(draw(int(2 * time.Second))))
		case 5:
			time.Sleep(time.Duration(draw(int(2 * time.Minute))))
		case 6: // discovery changes, and decisions are reviewed: a direct one by its address alone
			to := pick()
			w.mu.Lock()
			w.mesh[to] = !w.mesh[to]
			w.hidden[to] = w.mesh[to]
			w.mu.Unlock()
			w.review(to)
			synctest.Wait()
			if v := w.verdict(to); w.mesh[to] && v == capture.Direct {
				t.Errorf("%v is reached directly, and the mesh has it", to)
			}
		case 7: // the rules are set anew by another program, or the process and its rules are
			if draw(2) == 0 {
				start()
				break
			}
			w.mu.Lock()
			for _, set := range w.sets {
				clear(set)
			}
			w.mu.Unlock()
		case 8:
			to := pick()
			w.mu.Lock()
			w.hidden[to] = true
			w.mu.Unlock()
		}
		synctest.Wait()
	}
	w.mu.Lock()
	w.fails, w.busy = 0, 0
	w.mu.Unlock()
	time.Sleep(10 * time.Second)
	if !w.d.Review(func(netip.Addr) bool { return true }) {
		t.Error("a review has not changed the rules")
	}
	for _, to := range destinations { // what gateways know is known by now, if it was asked for
		p := open(to)
		time.Sleep(5 * time.Second)
		want, _, _ := w.Judge(to)
		if got := w.seen(p); got != want {
			t.Errorf("a connection to %v is %v, want %v", to, got, want)
		}
		if w.verdict(to) == capture.Direct && w.mesh[to] {
			t.Errorf("%v is reached directly, and the mesh has it", to)
		}
	}
	cancel()
	w.d.Wait()
}

func (w *world) decider() *Decider {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.d
}

// review is what follows a change of discovery at one address.
func (w *world) review(to netip.AddrPort) {
	for !w.decider().Review(func(a netip.Addr) bool { return a == to.Addr() }) {
		time.Sleep(time.Second)
	}
}

// seen is the verdict that a connection has met; 0: none yet.
func (w *world) seen(p capture.FirstPacket) capture.Verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out[p.From]
}

// retry sends a first packet as a kernel does: at once, and after 1 s and 3 s if it has met no verdict.
func (w *world) retry(ctx context.Context, p capture.FirstPacket) {
	for _, after := range []time.Duration{0, time.Second, 2 * time.Second} {
		time.Sleep(after)
		if w.seen(p) != 0 || w.Send(p) == nil && w.seen(p) != 0 {
			return
		}
		w.decider().Packet(ctx, p)
	}
}
