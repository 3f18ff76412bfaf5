package antientropy

import (
	"container/heap"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

var epoch = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func chacha(seed string) *rand.ChaCha8 { return rand.NewChaCha8(sha256.Sum256([]byte(seed))) }

// world is gateways in virtual time. Everything follows from its seed.
type world struct {
	t       testing.TB
	rng     *rand.Rand
	source  io.Reader
	now     time.Time
	queue   events
	serial  int
	keys    map[string]networkkey.Private
	known   networkkey.Known
	limits  ledger.Limits
	sites   []*site
	byName  map[string]*site
	blocked map[[2]string]bool // pairs that cannot reach each other

	delay     func() time.Duration
	loss, dup float64
	lifetime  time.Duration                        // of certificates
	record    func(to string, message []byte)      // sees every message
	drop      func(to string, message []byte) bool // loses it
	onChange  func(*site)
	rejected  map[string]int
	errs      map[string]int
}

// site is a place where one gateway process after another runs.
type site struct {
	name, network string
	clock         time.Duration // how far its clock is off
	node          *Node
	key           *networkkey.Instance
	wake          time.Time
	sent, got     int // bytes
	messages      int
}

type event struct {
	at     time.Time
	serial int
	do     func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].serial < e[j].serial
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

// nobody is reached by statements directly.
func nobody(record.Instance) bool { return false }

func newWorld(t testing.TB, seed string, networks, each int) *world {
	w := &world{
		t: t, rng: rand.New(chacha(seed)), source: chacha(seed + "keys"), now: epoch, lifetime: networkkey.MaxLifetime,
		keys: map[string]networkkey.Private{}, known: networkkey.Known{}, limits: ledger.DefaultLimits, blocked: map[[2]string]bool{},
		byName: map[string]*site{}, rejected: map[string]int{}, errs: map[string]int{},
		delay:  func() time.Duration { return 40 * time.Millisecond },
		record: func(string, []byte) {}, drop: func(string, []byte) bool { return false }, onChange: func(*site) {},
	}
	for n := range networks {
		name := fmt.Sprintf("network-%02d", n)
		key, err := networkkey.Generate(w.source)
		if err != nil {
			t.Fatal(err)
		}
		w.keys[name], w.known[name] = key, []networkkey.Public{key.Public()}
		for g := range each {
			s := &site{name: fmt.Sprintf("%s/gw-%d", name, g), network: name}
			w.sites, w.byName[s.name] = append(w.sites, s), s
		}
	}
	return w
}

// only keeps so many of the sites.
func (w *world) only(sites int) {
	for _, s := range w.sites[sites:] {
		delete(w.byName, s.name)
	}
	w.sites = w.sites[:sites]
}

func (w *world) at(t time.Time, do func()) {
	w.serial++
	heap.Push(&w.queue, event{t, w.serial, do})
}

// start begins a new process at s, which has said nothing yet.
func (w *world) start(s *site) {
	key, err := networkkey.NewInstance(w.source)
	if err == nil {
		err = w.keys[s.network].Certify(key, s.network, "gw", s.time(w), w.lifetime)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	p := NewPublisher(key, w.limits.Records, w.limits.Bytes)
	p.Certified(s.time(w))
	rng := rand.New(rand.NewPCG(w.rng.Uint64(), w.rng.Uint64()))
	s.key, s.wake = key, time.Time{}
	s.node = NewNode(Config{Publisher: p, Ledger: ledger.New(w.known, w.limits), Random: rng.Uint64}, s.time(w))
	for _, o := range w.sites {
		if o != s && !w.blocked[[2]string{s.name, o.name}] {
			s.node.AddPeer(o.name, o.running(), o.name, o.network == s.network, s.time(w))
			if o.node != nil { // the connections of the process before have ended
				o.node.RemovePeer(s.name)
				o.node.AddPeer(s.name, key.ID(), s.name, o.network == s.network, o.time(w))
			}
		}
	}
	w.tick(s)
}

// running names the process that runs at s; zero if there is none.
func (s *site) running() (id record.Instance) {
	if s.node != nil {
		id = s.key.ID()
	}
	return id
}

// time is what the clock of s shows.
func (s *site) time(w *world) time.Time { return w.now.Add(s.clock) }

func (w *world) tick(s *site) {
	if s.node == nil {
		return
	}
	out, changes, err := s.node.Tick(s.time(w))
	if err != nil {
		w.t.Fatalf("%s: %v", s.name, err)
	}
	w.deliver(s, out, changes)
}

func (w *world) deliver(s *site, out []Output, changes []ledger.Change) {
	for _, o := range out {
		s.sent += len(o.Message)
		s.messages++
		if !o.Bulk && len(o.Message) > 64<<10 {
			w.t.Fatalf("a packet of %d bytes", len(o.Message))
		}
		w.record(o.Peer, o.Message)
		copies := 1
		if w.rng.Float64() < w.loss || w.drop(o.Peer, o.Message) {
			copies = 0
		} else if w.rng.Float64() < w.dup {
			copies = 2
		}
		for range copies {
			w.at(w.now.Add(w.delay()), func() { w.receive(w.site(o.Peer), s.name, o.Message) })
		}
	}
	if len(changes) > 0 {
		w.onChange(s)
	}
	next := w.now.Add(s.node.Next(s.time(w)).Sub(s.time(w)))
	if s.wake.IsZero() || !s.wake.After(w.now) || next.Before(s.wake) {
		s.wake = next
		node := s.node
		w.at(next, func() {
			if s.node == node && s.wake.Equal(w.now) {
				w.tick(s)
			}
		})
	}
}

func (w *world) receive(s *site, from string, message []byte) {
	if s.node == nil {
		return
	}
	s.got += len(message)
	out, changes, err := s.node.Receive(from, message, s.time(w))
	if err != nil {
		w.rejected[s.name]++
		w.errs[err.Error()]++
	}
	w.deliver(s, out, changes)
}

func (w *world) site(name string) *site { return w.byName[name] }

func (w *world) block(a, b *site) {
	w.blocked[[2]string{a.name, b.name}], w.blocked[[2]string{b.name, a.name}] = true, true
}

// run lets d pass.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for len(w.queue) > 0 && !w.queue[0].at.After(end) {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.do()
	}
	w.now = end
}

func (w *world) publish(s *site, records ...record.Record) {
	for _, r := range records {
		if err := s.node.Publisher().Put(r, s.time(w)); err != nil {
			w.t.Fatalf("%s: %v", s.name, err)
		}
	}
	w.tick(s)
}

func serviceName(n int) string {
	return fmt.Sprintf("service-%04d.namespace-%02d.svc.cluster.local", n, n%40)
}

func export(n int) record.Record {
	return record.ExportRecord(serviceName(n), record.Export{
		Name: fmt.Sprintf("service-%04d", n), Namespace: fmt.Sprintf("namespace-%02d", n%40), Ports: []record.Port{{Name: "http", Port: 80}}, Scope: record.ScopeGlobal, Capacity: 10,
	})
}

func healthy(n int, healthy uint32) record.Record {
	h := record.Health{Ready: 10, Healthy: healthy, ReadyCapacity: 10, HealthyCapacity: healthy}
	for e := healthy; e < 10; e++ {
		h.Exceptions = append(h.Exceptions, record.Exception{Endpoint: 1<<60 + 7, Cause: record.Witness})
	}
	return record.HealthRecord(serviceName(n), 80, h)
}

// status is what s believes of an instance.
func (s *site) status(id record.Instance) (ledger.Status, bool) {
	for _, st := range s.node.Ledger().Status() {
		if st.Instance == id {
			return st, true
		}
	}
	return ledger.Status{}, false
}

// agree says whether every site believes exactly what every other says.
func (w *world) agree() error {
	for _, r := range w.sites {
		if r.node == nil {
			continue
		}
		believed := map[record.Instance]ledger.Status{}
		for _, st := range r.node.Ledger().Status() {
			believed[st.Instance] = st
		}
		for _, s := range w.sites {
			if s.node == nil {
				continue
			}
			if st := believed[s.key.ID()]; !st.Complete || st.Watermark != s.node.Publisher().watermark || st.Phase != ledger.Live {
				return fmt.Errorf("%s believes of %s: statement %d, complete %v, watermark %d, %v; it said %d", r.name, s.name, st.Count, st.Complete, st.Watermark, st.Phase, s.node.Publisher().watermark)
			}
		}
	}
	return nil
}
