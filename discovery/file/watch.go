package file

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/settled"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	// DefaultEvery is how often a file is looked at unless the Watcher says.
	DefaultEvery = time.Second
	// racy is how old a modification time must be before an unchanged one
	// proves that nothing was written: clocks of file systems are coarse.
	racy = 2 * time.Second
)

var errRestless = fmt.Errorf("it is written to again and again and is never left alone for %s: write a new file beside it and rename it", settled.Pause)

// Watcher follows one file. Set Every, Log and Guard between Open and Run.
type Watcher struct {
	Every time.Duration  // pause between looks; zero is DefaultEvery
	Log   zerolog.Logger // the zero value logs nothing
	Guard Guard          // the zero value holds what removes more than DefaultMaxRemoval

	toldLines logging.PeerLimits // of the log, of what other networks tell

	path    string
	network string // of a process that keeps no workload of others; "": it keeps all
	own     string // of the process; "": of none
	excerpt bool   // gateways of its network tell it of the cluster
	store   *discovery.Store
	again   chan struct{} // one slot: look now, whatever the stamp says
	confirm chan confirmation

	// Of Run alone, and of Open before it.
	good   sum   // of the content that store holds
	seen   sum   // of the content looked at last, good or bad
	told   sum   // of the content counted last
	stamp  stamp // of the file when it was read last
	file   settled.File
	unread string // why the file cannot be read now; "" if it can
	why    string // why the content looked at last is not in force; "" if it is
	held   *held  // the content looked at last, if it waits for a confirmation
	// listing is what the content in force says.
	listing   discovery.Listing
	elsewhere atomic.Pointer[discovery.Elsewhere] // of listing
	listed    atomic.Pointer[discovery.Listing]   // the same
	// early is what there was to log before Log was set.
	early []Problem
	// tell is set while the next look must log what it finds, new or not.
	tell bool
	// writing is when a look first found the file being written to; zero if the
	// last one did not.
	writing time.Time

	accepted, rejected, holds atomic.Uint64 // contents since Open

	// building is held from changes of the builder until store has what they come to.
	building sync.Mutex
	builder  *discovery.Builder

	mu      sync.Mutex
	status  Status
	written problems // of the file
	others  problems // of what Apply was given
}

// held is good content that removes too much.
type held struct {
	id     string
	sum    sum
	doc    *strictyaml.Doc
	config discovery.Config
	why    string
}

type sum [sha256.Size]byte

// stamp is what tells cheaply that a file is another one.
type stamp struct {
	info    os.FileInfo
	trusted bool // the modification time was old enough when the file was read
}

// Open loads the file at path into store. A bad file is an error and leaves
// store as it was. The revision is one above that of what store held.
func Open(path string, store *discovery.Store) (*Watcher, error) { return OpenFor("", path, store) }

// OpenFor is Open for a process on network that keeps no workload of other networks, but
// what they come to: shares of services, and names; see [discovery.Config.ListFor].
func OpenFor(network, path string, store *discovery.Store) (*Watcher, error) {
	return open(network, network, path, store)
}

// open is OpenFor of a process that keeps what one on network keep does, and is on own.
func open(keep, own, path string, store *discovery.Store) (*Watcher, error) {
	w := &Watcher{path: path, network: keep, own: own, store: store, toldLines: logging.PeerLimits{Every: toldEvery}, again: make(chan struct{}, 1), confirm: make(chan confirmation)}
	data, st, err := first(path)
	if err != nil {
		return nil, err
	}
	doc, c, err := decode(path, data)
	if err != nil {
		return nil, err
	}
	w.builder = discovery.NewBuilder(store.Current().Revision)
	next, _ := w.list(c)
	s, _ := w.take(c, next)
	w.good = sha256.Sum256(data)
	w.told = w.good
	w.seen, w.stamp = w.good, st
	w.status = Status{File: path, Revision: s.Revision, LastSuccess: time.Now()}
	w.report(doc, discovery.News{})
	w.early = w.status.Problems
	return w, nil
}

// list lists c; whole is its snapshot if next does not hold all workloads.
func (w *Watcher) list(c discovery.Config) (next discovery.Listing, whole *mesh.Snapshot) {
	if w.network == "" {
		return c.List().With(c.SharesOf(w.own)), nil
	}
	next, whole = c.ListFor(w.network)
	return next.With(c.SharesOf(w.own)), whole
}

// inForce is what counts as listed now.
func (w *Watcher) inForce() inventory {
	return inventory{w.store.Current(), w.listing.Elsewhere(), w.alone}
}

// wouldBe is what next would put into force, which whole has all workloads of.
func wouldBe(whole *mesh.Snapshot, next discovery.Listing) inventory {
	return inventory{Snapshot: whole, alone: func(k discovery.Key) bool { return k.Kind != discovery.KindService || next.Lists(k) }}
}

// alone reports whether the record that the file has under k is in force, and nobody else's
// would take its place.
func (w *Watcher) alone(k discovery.Key) bool {
	w.building.Lock()
	defer w.building.Unlock()
	return w.builder.Alone(k)
}

// NameOf returns the UID of an endpoint's workload on a network of which no workloads
// are kept; "" if the file lists none. Safe for concurrent use.
func (w *Watcher) NameOf(id mesh.EndpointID) string {
	if e := w.elsewhere.Load(); e != nil {
		return e.Find(id)
	}
	return ""
}

// Lists reports whether the file that is in force lists an object. Safe for concurrent use.
func (w *Watcher) Lists(k discovery.Key) bool {
	l := w.listed.Load()
	return l != nil && l.Lists(k)
}

// take makes the builder say what c says, which next lists, and publishes that.
func (w *Watcher) take(c discovery.Config, next discovery.Listing) (*mesh.Snapshot, discovery.News) {
	faults := next.FaultsSince(w.listing)
	changes := next.Since(w.listing)
	w.listing = next
	elsewhere := next.Elsewhere()
	w.elsewhere.Store(&elsewhere)
	w.listed.Store(&next)
	s, news := w.build(func() {
		w.builder.SetTrustDomain(c.TrustDomain)
		w.builder.SetRootNamespace(c.RootNamespace)
		w.builder.Apply(changes...)
	})
	news.Appeared, news.Gone = append(faults.Appeared, news.Appeared...), append(faults.Gone, news.Gone...)
	return s, news
}

// build publishes what changes of the builder come to; if that is nothing new, it is no
// new revision.
func (w *Watcher) build(change func()) (*mesh.Snapshot, discovery.News) {
	w.building.Lock()
	defer w.building.Unlock()
	change()
	s, changes, news := w.builder.Commit()
	if !changes.Empty() {
		w.store.Publish(s, changes)
	}
	return s, news
}

// Apply takes what another source says into force, beside the file: a snapshot with both
// is published before it returns. The keys of changes name a Source after
// [discovery.Written]: where both say something of one thing, the file's word holds. What
// cannot be used of it is a problem in Status, and logged. Safe for concurrent use, also
// with Run.
func (w *Watcher) Apply(changes ...discovery.Change) *mesh.Snapshot {
	for _, c := range changes {
		if c.Key.Source == discovery.Written {
			panic("discovery/file: " + c.Key.String() + " is to be applied in the name of the file")
		}
	}
	s, news := w.build(func() { w.builder.Apply(changes...) })
	w.reportTold(news)
	return s
}

// first reads the file at path as soon as nobody writes to it.
func first(path string) (data []byte, st stamp, err error) {
	var file settled.File
	for began := time.Now(); ; time.Sleep(settled.Pause / 4) {
		before, err := os.Stat(path)
		if err != nil {
			return nil, st, fmt.Errorf("read discovery file: %w", err)
		}
		now := time.Now()
		data, alone, err := readSettled(path, &file, before, now)
		switch {
		case alone || err != nil:
			return data, stampOf(before, now), err
		case now.Sub(began) >= settled.Patience:
			return nil, st, fmt.Errorf("read discovery file: %s: %w", path, errRestless)
		}
	}
}

// readSettled reads the file that before is about; alone is false if it is being
// written to, as far as file has seen.
func readSettled(path string, file *settled.File, before os.FileInfo, now time.Time) (data []byte, alone bool, err error) {
	if !file.Alone(before, now) {
		return nil, false, nil
	}
	if data, err = readRegular(path); err != nil {
		return nil, false, err
	}
	after, err := os.Stat(path)
	if err != nil || !settled.Same(after, before) {
		return nil, false, nil // the next look tells
	}
	return data, true, nil
}

// Watch opens the file at path and follows it until ctx ends; it returns an
// error only if the first load fails.
func Watch(ctx context.Context, path string, every time.Duration, store *discovery.Store, log zerolog.Logger) error {
	w, err := Open(path, store)
	if err != nil {
		return err
	}
	w.Every, w.Log = every, log
	w.Run(ctx)
	return nil
}

// Rejected returns how many contents of the file were refused since Open.
func (w *Watcher) Rejected() uint64 { return w.rejected.Load() }

// Reload makes Run read the file now, and log what it thinks of it even if the
// content is not new. It does not wait.
func (w *Watcher) Reload() {
	select {
	case w.again <- struct{}{}:
	default:
	}
}

// Run looks at the file until ctx ends: a good change is swapped into the
// store, a bad one is logged once and changes nothing. It blocks; call it once.
func (w *Watcher) Run(ctx context.Context) {
	if w.path == "" {
		w.idle(ctx)
		return
	}
	every := w.Every
	if every <= 0 {
		every = DefaultEvery
	}
	for _, p := range w.early {
		w.logProblem(p)
	}
	w.early = nil
	t := time.NewTimer(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-w.confirm:
			c.answer <- w.confirmed(c.id)
			continue
		case <-w.again:
			w.stamp, w.seen, w.tell = stamp{}, sum{}, true
		case <-t.C:
		}
		if w.look(time.Now()) {
			t.Reset(every)
		} else {
			t.Reset(min(every, settled.Pause))
		}
	}
}

// look examines the file once and reports false if it is being written to.
func (w *Watcher) look(now time.Time) (alone bool) {
	alone = w.examine(now)
	switch {
	case alone:
		w.tell, w.writing = false, time.Time{}
	case w.writing.IsZero():
		w.writing = now
	case now.Sub(w.writing) >= settled.Patience:
		w.unreadable(errRestless)
	}
	return alone
}

func (w *Watcher) examine(now time.Time) (alone bool) {
	before, err := os.Stat(w.path)
	if err != nil {
		w.unreadable(err)
		return true
	}
	st := stampOf(before, now)
	if w.unread == "" && w.stamp.trusted && settled.Same(st.info, w.stamp.info) {
		w.note(now)
		return true
	}
	data, alone, err := readSettled(w.path, &w.file, before, now)
	switch {
	case err != nil:
		w.unreadable(err)
		return true
	case !alone:
		return false
	}
	w.readable()
	w.stamp = st
	w.consider(data)
	w.note(now)
	return true
}

// note tells Status what the last look has shown.
func (w *Watcher) note(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	why, was := w.why, w.status
	if w.unread != "" {
		why = "read discovery file: " + w.unread
	}
	w.status.Revision, w.status.Failing, w.status.Held = w.store.Current().Revision, why != "", ""
	if w.held != nil {
		w.status.Held = w.held.id
	}
	switch {
	case why == "":
		w.status.LastSuccess = now
	case !was.Failing || why != was.LastError:
		w.status.LastError, w.status.LastErrorTime = why, now
	}
}

// consider takes data if it is new, good, and removes no more than it may.
func (w *Watcher) consider(data []byte) {
	is := sum(sha256.Sum256(data))
	if is == w.seen {
		return
	}
	w.seen, w.held, w.why = is, nil, ""
	again := is == w.told // read once more on demand, or after it could not be read
	w.told = is
	old := w.store.Current()
	if is == w.good {
		w.Log.Info().Str("file", w.path).Uint64("revision", old.Revision).Msg("discovery file is as it was last accepted")
		return
	}
	doc, c, err := decode(w.path, data)
	if err != nil {
		if !again {
			w.rejected.Add(1)
		}
		w.why = err.Error()
		w.Log.Error().Str("file", w.path).Uint64("revision", old.Revision).Err(err).Msg("discovery file refused, keeping the last good state")
		return
	}
	next, whole := w.list(c)
	before := w.inForce()
	if (c.Confirm == "" || c.Confirm != identifier(c, data)) && (whole != nil || before.elsewhere.Len() > 0 || !riskless(old, c.RootNamespace, next.Since(w.listing))) {
		if whole == nil {
			whole, _ = discovery.Build(old.Revision+1, c)
		}
		if why := w.Guard.objection(before, wouldBe(whole, next)); why != "" {
			if !again {
				w.holds.Add(1)
			}
			w.hold(&held{id: identifier(c, data), sum: is, doc: doc, config: c, why: why})
			return
		}
	}
	w.accept(is, doc, c, next, "discovery changed")
}

func (w *Watcher) hold(h *held) {
	w.held, w.why = h, "held: "+h.why
	w.Log.Error().Str("file", w.path).Uint64("revision", w.store.Current().Revision).Str("reason", h.why).Str("confirm", h.id).
		Str("remedy", fmt.Sprintf("if it is meant, write confirm: %q into the file, or POST /discovery/confirm?id=%[1]s to the admin address", h.id)).
		Msg("discovery file held, keeping the last good state")
}

// accept puts c, which the content with this sum says, into force. A content that
// says the same in other words is no new revision.
func (w *Watcher) accept(is sum, doc *strictyaml.Doc, c discovery.Config, next discovery.Listing, message string) {
	w.good, w.held, w.why = is, nil, ""
	w.accepted.Add(1)
	old := w.inForce()
	s, news := w.take(c, next)
	w.mu.Lock()
	if w.status.Held != "" && s.Revision > old.Revision { // confirmed: it was no mistake
		w.status.LastError, w.status.LastErrorTime = "", time.Time{}
	}
	w.mu.Unlock()
	w.report(doc, news)
	w.Log.Info().Str("file", w.path).Uint64("revision", s.Revision).Int("workloads", w.inForce().size()).Int("services", s.NumServices()).Int("gateways", countGateways(s)).Msg(message)
	if names := emptied(old, w.inForce()); len(names) > 0 {
		w.Log.Warn().Str("file", w.path).Uint64("revision", s.Revision).Str("services", few(names)).Msg("services have lost their last workload")
	}
}

func (w *Watcher) unreadable(err error) {
	cause := err
	if p := (*os.PathError)(nil); errors.As(err, &p) {
		cause = p.Err
	}
	if w.held != nil { // the file does not say it any more, or nobody can tell
		w.held, w.why, w.seen = nil, "", sum{}
	}
	if why := strings.TrimPrefix(cause.Error(), "read discovery file: "); w.unread != why || w.tell {
		w.unread, w.tell = why, false
		w.Log.Error().Str("file", w.path).Uint64("revision", w.store.Current().Revision).Err(err).Msg("discovery file cannot be read, keeping the last good state")
	}
	w.note(time.Now())
}

func (w *Watcher) readable() {
	if w.unread != "" {
		w.unread = ""
		w.Log.Info().Str("file", w.path).Msg("discovery file can be read again")
	}
}

func stampOf(i os.FileInfo, now time.Time) stamp {
	return stamp{info: i, trusted: now.Sub(i.ModTime()) >= racy}
}

func countGateways(s *mesh.Snapshot) (n int) {
	for _, network := range s.GatewayNetworks() {
		n += len(s.Gateways(network))
	}
	return n
}
