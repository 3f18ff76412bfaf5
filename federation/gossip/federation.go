package gossip

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/antientropy"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/logging"
)

// Federation is one instance of a gateway among all others. It is safe for
// concurrent use.
type Federation struct {
	cfg       Config
	instance  *networkkey.Instance
	member    string // what memberlist calls this instance
	transport *transport
	members   *members
	inbox     *inbox
	list      atomic.Pointer[memberlist.Memberlist] // nil before Run
	rare      logging.PeerLimits                    // of lines that are logged once per hour, by peer
	refusals  refusals
	wake      chan struct{} // something may be due earlier

	syncOnce sync.Once
	synced   chan struct{}

	// mu owns the node: whoever holds it hands in messages and time, and queues
	// what comes out, which never waits.
	mu    sync.Mutex
	node  *antientropy.Node
	peers map[record.Instance]bool
	keys  Keys
	// keysErr is why the last reading of keys failed; nil: it did not.
	keysErr error
	subs    map[*Subscription]struct{}
	alive   []string // names of gateways that are believed now, sorted
}

// New checks cfg, draws the key of this instance and has it certified. The
// federation does nothing until Run; connections may be handed to Accept and
// records to Publish before.
func New(cfg Config) (*Federation, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	keys, err := cfg.Keys()
	if err != nil {
		return nil, err
	}
	instance, err := networkkey.NewInstance(crand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if err := keys.Network.Certify(instance, cfg.Network, cfg.Name, now, cfg.timing.lifetime); err != nil {
		return nil, fmt.Errorf("federation: %w", err)
	}
	if _, err := keys.Known.Verify(instance.Certificate(), now); err != nil {
		return nil, fmt.Errorf("federation: own %w", err)
	}
	publisher := antientropy.NewPublisher(instance, cfg.limits.Records, cfg.limits.Bytes)
	publisher.Certified(now)
	f := &Federation{
		cfg: cfg, instance: instance, rare: logging.PeerLimits{Every: time.Hour, Log: &cfg.Log}, wake: make(chan struct{}, 1), synced: make(chan struct{}),
		node:  antientropy.NewNode(antientropy.Config{Publisher: publisher, Ledger: ledger.New(keys.Known, cfg.limits), Random: random}, now),
		peers: map[record.Instance]bool{}, keys: keys, subs: map[*Subscription]struct{}{},
	}
	f.member = memberName(cfg.Network+"/"+cfg.Name, f.Instance())
	f.transport, f.members = newTransport(f), newMembers(f)
	f.inbox = newInbox(cfg.Metrics.Dropped.WithLabelValues("inbox").Inc)
	return f, nil
}

// random draws what nobody can foretell.
func random() uint64 {
	var b [8]byte
	crand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

// Instance returns the name of this instance.
func (f *Federation) Instance() record.Instance { return f.instance.ID() }

// PublicKeys returns the keys of the own network that others are to know.
func (f *Federation) PublicKeys() (out [][]byte) {
	for _, p := range f.held().Known[f.cfg.Network] {
		out = append(out, p[:])
	}
	return out
}

// NetworkKeys returns the same, and first the one that certifies this instance.
func (f *Federation) NetworkKeys() []networkkey.Public {
	keys := f.held()
	signs := keys.Network.Public()
	return append([]networkkey.Public{signs}, slices.DeleteFunc(slices.Clone(keys.Known[f.cfg.Network]), func(k networkkey.Public) bool { return k == signs })...)
}

// Accept takes over a connection on which the peer has proved its identity
// and has asked for [ALPN]. It returns at once.
func (f *Federation) Accept(conn net.Conn, id spiffeid.ID) { f.transport.accept(conn, id) }

// Publish makes records this instance's word and withdraws others. What is news
// goes to all peers at once; it does not wait for that.
func (f *Federation) Publish(records []record.Record, withdrawn ...record.Key) {
	if len(records)+len(withdrawn) == 0 {
		return
	}
	f.do(func(n *antientropy.Node, now time.Time) error {
		var errs []error
		for _, r := range records {
			errs = append(errs, n.Publisher().Put(r, now))
		}
		for _, k := range withdrawn {
			n.Publisher().Withdraw(k, now)
		}
		return errors.Join(errs...)
	})
	f.cfg.Metrics.Edges.Add(float64(len(records)))
}

// Unpublished returns what this instance would say and cannot, sorted by key.
func (f *Federation) Unpublished() []antientropy.Unsaid {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.node.Publisher().Unsaid()
}

// Synchronise lets others take what is not published for withdrawn: call it once
// everything that this gateway knows was published.
func (f *Federation) Synchronise() {
	f.do(func(n *antientropy.Node, _ time.Time) error { n.Publisher().Synchronise(); return nil })
}

// do changes the node and then does what is due.
func (f *Federation) do(change func(n *antientropy.Node, now time.Time) error) {
	f.mu.Lock()
	now := time.Now()
	err := change(f.node, now)
	out, changes, terr := f.node.Tick(now)
	f.emit(out, changes)
	f.cfg.Metrics.Unpublished.Set(float64(f.node.Publisher().UnsaidLen()))
	f.mu.Unlock()
	if err = errors.Join(err, terr); err != nil {
		f.cfg.Metrics.Rejected.WithLabelValues("own").Inc()
		f.rare.Sample(f.cfg.Log.Warn(), "", "own").Err(err).Msg("own federation records not published")
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// emit queues messages and tells the subscribers; the caller holds mu.
func (f *Federation) emit(out []antientropy.Output, changes []ledger.Change) {
	for _, o := range out {
		f.transport.send(o)
	}
	if len(changes) == 0 {
		return
	}
	for s := range f.subs {
		s.add(changes)
	}
	all := slices.ContainsFunc(changes, func(c ledger.Change) bool { return c.All })
	if all || !f.isSynced() {
		f.census()
	}
}

// connected notes that the connections of an instance have changed.
func (f *Federation) connected(id record.Instance, gateway string, local bool) {
	f.do(func(n *antientropy.Node, now time.Time) error {
		switch there := f.transport.has(id.String()); {
		case there && !f.peers[id]:
			f.peers[id] = true
			n.AddPeer(id.String(), id, gateway, local, now)
		case !there && f.peers[id]:
			delete(f.peers, id)
			n.RemovePeer(id.String())
		}
		return nil
	})
}

// dialsDoors reports whether there is a network behind a door that this gateway dials.
func (f *Federation) dialsDoors() bool {
	return f.cfg.Doors != nil && slices.ContainsFunc(f.cfg.Doors(), func(d Door) bool { return d.Dialled })
}

// Synced is closed when this gateway holds all that others say, or when
// there was nobody to ask for a bounded time.
func (f *Federation) Synced() <-chan struct{} { return f.synced }

func (f *Federation) isSynced() bool {
	select {
	case <-f.synced:
		return true
	default:
		return false
	}
}

func (f *Federation) setSynced() { f.syncOnce.Do(func() { close(f.synced) }) }

// leave tells the others that this instance ends, sends what is queued, and
// closes all connections. memberlist's last probe may go on for probeInterval.
func (f *Federation) leave(list *memberlist.Memberlist) {
	if err := list.Leave(leaveWait); err != nil {
		f.cfg.Log.Debug().Err(err).Msg("left without telling the members")
	}
	list.Shutdown()
}

// Run keeps connections to all peers, tells and hears, until ctx ends. It may
// be called once.
func (f *Federation) Run(ctx context.Context) error {
	list, err := memberlist.Create(f.memberlistConfig())
	if err != nil {
		f.transport.Shutdown()
		return fmt.Errorf("federation: start member %s: %w", f.member, err)
	}
	f.list.Store(list)
	var wg sync.WaitGroup
	wg.Go(func() { f.transport.run(ctx) })
	wg.Go(func() { f.renew(ctx) })
	wg.Go(func() { f.join(ctx, list) })
	wg.Go(func() { f.inbox.run(ctx, f.open) })
	defer wg.Wait()
	defer f.leave(list)
	start := time.Now()
	counted := start
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			f.do(func(*antientropy.Node, time.Time) error { return nil })
		case <-f.wake:
		case <-f.members.changed:
			counted = time.Time{}
		}
		if time.Since(start) > f.cfg.SyncWait || len(f.cfg.Peers()) == 0 && !f.dialsDoors() {
			f.setSynced()
		}
		f.mu.Lock()
		now := time.Now()
		if now.Sub(counted) >= time.Second { // discovery may have changed
			counted = now
			f.census()
		}
		next := f.node.Next(now)
		f.mu.Unlock()
		timer.Reset(min(max(next.Sub(now), time.Millisecond), time.Second))
	}
}
