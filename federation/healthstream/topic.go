package healthstream

import (
	"bytes"
	"maps"
	"slices"
	"sync"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

// Source is what a gateway knows of services.
type Source interface {
	// Shares returns what is known of a service on every network, one Share each,
	// in any order. It must not wait, and must not call the [Server].
	Shares(service string) []Share
}

// topics is the index from services to the streams that follow them. What is known
// of a service is encoded once, however many streams are told. Safe for concurrent
// use.
type topics struct {
	source Source

	mu       sync.Mutex
	byName   map[string]*topic
	proofs   map[record.Instance][]byte // as they were encoded last, so that topics share them
	holdings []string                   // networks of which the source knows everything, sorted
	streams  map[*downlink]struct{}
	offer    offer // of discovery, to every stream
}

// topic is one service that somebody follows.
type topic struct {
	service string

	// reading lets one goroutine at a time ask the source, so that an older answer
	// never replaces a newer one.
	reading sync.Mutex
	first   sync.Once // whoever follows waits until the source was asked

	mu      sync.Mutex
	version uint64 // of the newest change
	shares  map[string]version
	follow  map[*downlink]struct{}
}

// version is a share as it was encoded at a change of its topic.
type version struct {
	at      uint64
	body    []byte
	gone    bool
	proofs  []proof // of the instances that body names
	renewed uint64  // the change at which proofs became what they are
}

func newTopics(s Source) *topics {
	return &topics{source: s, byName: map[string]*topic{}, proofs: map[record.Instance][]byte{}, streams: map[*downlink]struct{}{}}
}

// hold notes of which networks the source knows everything. What it knows of them is
// told first, so that nobody takes what is on its way for withdrawn.
func (x *topics) hold(networks []string) {
	x.mu.Lock()
	same := slices.Equal(x.holdings, networks)
	x.mu.Unlock()
	if same {
		return
	}
	x.changedAll()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.holdings = networks[:min(len(networks), maxNetworks)]
	for d := range x.streams {
		d.nudge()
	}
}

func (x *topics) held() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.holdings
}

// maxInterned is how many proofs are kept so that topics share them.
const maxInterned = 4096

// proofsOf encodes what proves the instances of a share; what has not changed is what
// it was.
func (x *topics) proofsOf(s Share) (out []proof) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, v := range s.Instances {
		b := encodeProof(v)
		if b == nil || len(out) == maxInstances {
			continue
		}
		if old := x.proofs[v.Instance]; bytes.Equal(old, b) {
			b = old
		} else if len(x.proofs) >= maxInterned {
			clear(x.proofs) // topics have theirs
		}
		x.proofs[v.Instance] = b
		out = append(out, proof{v.Instance, b})
	}
	slices.SortFunc(out, func(a, b proof) int { return bytes.Compare(a.instance[:], b.instance[:]) })
	return out
}

// join makes d follow service and returns the topic, which knows its state.
func (x *topics) join(service string, d *downlink) *topic {
	x.mu.Lock()
	t := x.byName[service]
	if t == nil {
		t = &topic{service: service, shares: map[string]version{}, follow: map[*downlink]struct{}{}}
		x.byName[service] = t
	}
	t.mu.Lock()
	t.follow[d] = struct{}{}
	t.mu.Unlock()
	x.mu.Unlock()
	t.first.Do(func() { x.refresh(t) })
	return t
}

// leave ends what join began; a topic that nobody follows is forgotten.
func (x *topics) leave(t *topic, d *downlink) {
	x.mu.Lock()
	defer x.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.follow, d)
	if len(t.follow) == 0 && x.byName[t.service] == t {
		delete(x.byName, t.service)
	}
}

// changed reads services anew and wakes who follows them.
func (x *topics) changed(services []string) {
	for _, s := range services {
		x.mu.Lock()
		t := x.byName[s]
		x.mu.Unlock()
		if t != nil {
			x.refresh(t)
		}
	}
}

// changedAll is changed for every service that somebody follows.
func (x *topics) changedAll() { x.changed(x.names()) }

func (x *topics) names() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	names := make([]string, 0, len(x.byName))
	for n := range x.byName {
		names = append(names, n)
	}
	return names
}

func (x *topics) refresh(t *topic) {
	t.reading.Lock()
	defer t.reading.Unlock()
	bodies, proofs := map[string][]byte{}, map[string][]proof{}
	for _, s := range x.source.Shares(t.service) {
		if body := encodeShare(s); body != nil && len(s.Instances) > 0 && len(bodies) < maxNetworks {
			bodies[s.Network], proofs[s.Network] = body, x.proofsOf(s)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	next := t.version + 1
	for network, body := range bodies {
		old, ok := t.shares[network]
		now := version{at: next, body: body, proofs: proofs[network], renewed: next}
		if ok && !old.gone && bytes.Equal(old.body, body) {
			now.at, now.body = old.at, old.body
		}
		if ok && slices.EqualFunc(old.proofs, now.proofs, proof.equal) {
			now.proofs, now.renewed = old.proofs, old.renewed
		}
		if t.shares[network] = now; now.at == next || now.renewed == next {
			t.version = next
		}
	}
	for network, old := range t.shares {
		if _, there := bodies[network]; !there && !old.gone {
			t.shares[network], t.version = version{at: next, body: encodeShare(Share{Network: network}), gone: true}, next
		}
	}
	if t.version != next {
		return
	}
	for d := range t.follow {
		d.wake(t)
	}
}

// since returns the shares that have changed after version v, all that are there
// with whole, what proves the instances of these and of those that have other proofs
// since, and the version that this is.
func (t *topic) since(v uint64, whole bool) (bodies [][]byte, proofs []proof, now uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.shares {
		if whole && !s.gone || !whole && s.at > v {
			bodies = append(bodies, s.body)
		}
		if !s.gone && (whole || s.at > v || s.renewed > v) {
			proofs = append(proofs, s.proofs...)
		}
	}
	slices.SortFunc(bodies, bytes.Compare)
	return bodies, proofs, t.version
}

// downlink is what one stream is told: which services it follows, and how far it
// has been told of each. It queues nothing: a stream that is behind is sent what is
// known when it can take more.
type downlink struct {
	topics *topics
	limit  int // of subscriptions
	signal chan struct{}

	mu      sync.Mutex
	follows map[string]*following
	due     map[string]*following // something to send
	refused map[string]struct{}
	asks    []Target
	beats   bool      // one is owed
	notices *[]Notice // that are owed; nil: none
	anew    bool      // what was introduced is to be introduced again

	excerpts downlinkExcerpts

	// Of the goroutine that drains:
	introduced map[record.Instance][]byte // the proofs that were sent, at most maxIntroduced
	holdings   []string                   // that were sent
}

type following struct {
	topic *topic
	told  bool   // the whole state was sent; guarded by downlink.mu
	sent  uint64 // version of the topic; of the goroutine that drains
}

func newDownlink(x *topics, limit int) *downlink {
	d := &downlink{topics: x, limit: limit, signal: make(chan struct{}, 1), follows: map[string]*following{}, due: map[string]*following{}, refused: map[string]struct{}{}, introduced: map[record.Instance][]byte{}}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.streams[d] = struct{}{}
	return d
}

// maxIntroduced is how many instances a stream remembers as introduced; beyond it all are
// introduced again.
const maxIntroduced = 4096

// subscribe changes what d follows. It returns how many services are beyond the
// limit. One goroutine at a time calls it.
func (d *downlink) subscribe(add, remove []string) (beyond int) {
	for _, s := range remove {
		d.mu.Lock()
		f := d.follows[s]
		delete(d.follows, s)
		delete(d.due, s)
		d.mu.Unlock()
		if f != nil {
			d.topics.leave(f.topic, d)
			d.excerpts.unfollow(s)
		}
	}
	d.again(add)
	for _, s := range add {
		d.mu.Lock()
		f := d.follows[s]
		n := len(d.follows)
		d.mu.Unlock()
		switch {
		case f != nil:
			d.excerpts.follow(s)
			continue
		case n >= d.limit:
			beyond++
			d.refuse(s)
			continue
		}
		f = &following{topic: d.topics.join(s, d)}
		d.mu.Lock()
		d.follows[s], d.due[s] = f, f
		d.mu.Unlock()
		d.excerpts.follow(s)
	}
	d.nudge()
	return beyond
}

func (d *downlink) isFollowed(service string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.follows[service] != nil
}

// again owes the whole of those of services that d follows, and once more what proves
// them, all at once: who drains meanwhile introduces nobody twice.
func (d *downlink) again(services []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range services {
		if f := d.follows[s]; f != nil {
			d.anew = d.anew || f.told
			f.told, d.due[s] = false, f
		}
	}
}

// refuse owes the answer that a service is not followed.
func (d *downlink) refuse(service string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.refused) < d.limit {
		d.refused[service] = struct{}{}
	}
}

// wake is called by topic with its lock held: it must not wait.
func (d *downlink) wake(t *topic) {
	d.mu.Lock()
	if f := d.follows[t.service]; f != nil {
		d.due[t.service] = f
	}
	d.mu.Unlock()
	d.nudge()
}

// ask owes questions, beside those that are owed: at most [MaxFacts].
func (d *downlink) ask(targets []Target) {
	if len(targets) == 0 {
		return
	}
	d.mu.Lock()
	d.asks = slices.Concat(d.asks, targets)
	slices.SortFunc(d.asks, compareTargets)
	d.asks = slices.Compact(d.asks)
	d.asks = d.asks[:min(len(d.asks), MaxFacts)]
	d.mu.Unlock()
	d.nudge()
}

func (d *downlink) beat() {
	d.mu.Lock()
	d.beats = true
	d.mu.Unlock()
	d.nudge()
}

func (d *downlink) nudge() {
	select {
	case d.signal <- struct{}{}:
	default:
	}
}

// close leaves every topic.
func (d *downlink) close() {
	d.lead(false)
	d.mu.Lock()
	follows := d.follows
	d.follows, d.due = map[string]*following{}, map[string]*following{}
	d.mu.Unlock()
	for _, f := range follows {
		d.topics.leave(f.topic, d)
	}
	d.topics.mu.Lock()
	delete(d.topics.streams, d)
	d.topics.mu.Unlock()
}

// drain writes what is due until nothing is. A stream that takes nothing holds one
// message.
func (d *downlink) drain(write func(body []byte) error) error {
	holdings := d.topics.held() // before what is known of them, and written behind it
	if err := d.drainServices(write); err != nil || slices.Equal(holdings, d.holdings) {
		return err
	}
	d.holdings = holdings
	return write(holdingsMessage(holdings))
}

// introduce writes what of proofs was not written yet.
func (d *downlink) introduce(proofs []proof, write func(body []byte) error) error {
	var body []byte
	for i, p := range proofs {
		if !bytes.Equal(d.introduced[p.instance], p.body) {
			if len(d.introduced) >= maxIntroduced {
				clear(d.introduced)
			}
			d.introduced[p.instance] = p.body
			body = appendProof(body, p.body)
		}
		if len(body) >= chunkBytes || len(body) > 0 && i == len(proofs)-1 {
			if err := write(proofsMessage(body)); err != nil {
				return err
			}
			body = nil
		}
	}
	return nil
}

func (d *downlink) drainServices(write func(body []byte) error) error {
	var body []byte
	flush := func() error {
		if len(body) == 0 {
			return nil
		}
		m := servicesMessage(body)
		body = nil
		return write(m)
	}
	for _, s := range d.takeRefused() {
		body = appendService(body, s, true, true, nil)
	}
	for {
		f, whole, ok := d.pop()
		if !ok {
			return flush()
		}
		shares, proofs, now := f.topic.since(f.sent, whole)
		f.sent = now
		if err := d.introduce(proofs, write); err != nil {
			return err
		}
		for whole || len(shares) > 0 {
			n, size := 0, len(body)
			for n < len(shares) && (n == 0 || size < chunkBytes) {
				size += len(shares[n])
				n++
			}
			body = appendService(body, f.topic.service, whole, false, shares[:n])
			whole, shares = false, shares[n:]
			if len(body) < chunkBytes {
				continue
			}
			if err := flush(); err != nil {
				return err
			}
		}
	}
}

// pop takes a service that is due; whole says that it was not told yet. If it, or any
// other one, was asked for again since the last, all are to be introduced again.
func (d *downlink) pop() (f *following, whole, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.anew {
		d.anew = false
		clear(d.introduced)
	}
	for s, f := range d.due {
		delete(d.due, s)
		whole, f.told = !f.told, true
		return f, whole, true
	}
	return nil, false, false
}

func (d *downlink) takeRefused() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := slices.Sorted(maps.Keys(d.refused))
	clear(d.refused)
	return out
}

// owed takes what is to be said beside services.
func (d *downlink) owed() (asks []Target, beats bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	asks, beats = d.asks, d.beats
	d.asks, d.beats = nil, false
	return asks, beats
}
