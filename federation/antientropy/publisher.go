package antientropy

import (
	"fmt"
	"slices"
	"time"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

const (
	// Beat is how often an instance vouches for everything that it has said.
	Beat = 2 * time.Second
	// Pace is the time between two changes of one record that are told, in the long
	// run: the first Burst at once, of what follows the latest.
	Pace = 300 * time.Millisecond
	// Burst lets several endpoints of one service fail within a moment.
	Burst = 8
	// maxChanges is how many bytes of changes a statement carries; readers ask for
	// what is more.
	maxChanges = 32 << 10
	// introduced is how long after its issue a certificate goes with each
	// statement; whoever lacks it later asks.
	introduced = 20 * time.Second
)

// Publisher is what one gateway instance itself says. Not safe for concurrent
// use.
type Publisher struct {
	key   *networkkey.Instance
	set   *record.Set
	limit ledgerLimits

	count, watermark uint64
	said             uint64               // watermark of the last statement
	changed          map[string]bool      // since the last statement; true: removed
	waiting          map[string]*waiting  // paced: to be said later
	paid             map[string]time.Time // how far ahead the changes of a record have used up Pace
	unsaid           map[string]unsaid    // there was no room for it, or it is no record
	room             bool                 // something has gone, or shrunk, since retried
	retried          time.Time
	answers          answers
	certified        time.Time
	synchronised     bool
}

type ledgerLimits struct{ records, bytes int }

// waiting is what a record is going to be; a nil entry: removed.
type waiting struct {
	entry *record.Entry
	due   time.Time
}

// NewPublisher returns one that has said nothing. The key must be certified.
func NewPublisher(key *networkkey.Instance, records, bytes int) *Publisher {
	return &Publisher{
		key: key, set: record.NewSet(key.ID(), records, bytes), limit: ledgerLimits{records, bytes},
		changed: map[string]bool{}, waiting: map[string]*waiting{}, paid: map[string]time.Time{}, unsaid: map[string]unsaid{}, answers: newAnswers(),
	}
}

// Set returns all that is said, for [ledger.Ledger.OfferOwn]; it is not to be changed.
func (p *Publisher) Set() *record.Set { return p.set }

// Put says r from now on. What has not changed is not said again. The error
// names what cannot be said: an [*record.InvalidError] or [record.ErrTooLarge]. What
// is too large beside the others is said as soon as there is room: see [Publisher.Unsaid].
func (p *Publisher) Put(r record.Record, now time.Time) error {
	e, err := record.Encode(r)
	key := record.EncodeKey(r.Key)
	delete(p.unsaid, key)
	if err != nil {
		delete(p.waiting, key)
		if len(key) > 0 && len(key) <= record.MaxKey {
			p.unable(key, nil, err, now)
		}
		return err
	}
	if w := p.waiting[e.Key]; w != nil {
		w.entry = &e
		return nil
	}
	if old, ok := p.set.Get(e.Key); ok && old.Says(e) {
		return nil
	}
	if due := p.due(e.Key); now.Before(due) {
		p.waiting[e.Key] = &waiting{&e, due}
		return nil
	}
	return p.put(e, now)
}

func (p *Publisher) put(e record.Entry, now time.Time) error {
	e.Sequence = p.watermark + 1
	old, _ := p.set.Get(e.Key)
	size := e.Size() + record.SignatureBytes
	err := p.full(e.Key, size)
	if err == nil {
		err = p.set.Put(p.key.SignRecord(e))
	}
	if err != nil {
		k, _ := record.DecodeKey(e.Key)
		err = fmt.Errorf("publish %v beside %d records of %d bytes: %w", k, p.set.Len(), p.set.Bytes(), err)
		p.unable(e.Key, &e, err, now)
		return err
	}
	p.room = p.room || old.Size() > size
	p.watermark++
	p.changed[e.Key] = false
	p.pay(e.Key, now)
	return nil
}

// due is when a record may change.
func (p *Publisher) due(key string) time.Time { return p.paid[key].Add(-(Burst - 1) * Pace) }

func (p *Publisher) pay(key string, now time.Time) {
	paid := p.paid[key]
	if paid.Before(now) {
		paid = now
	}
	p.paid[key] = paid.Add(Pace)
}

// Withdraw says nothing more about k.
func (p *Publisher) Withdraw(k record.Key, now time.Time) {
	key := record.EncodeKey(k)
	delete(p.unsaid, key)
	if w := p.waiting[key]; w != nil {
		w.entry = nil
		return
	}
	if due := p.due(key); now.Before(due) {
		p.waiting[key] = &waiting{nil, due}
		return
	}
	p.remove(key, now)
}

func (p *Publisher) remove(key string, now time.Time) {
	if p.set.Remove(key) {
		p.room = true
		p.watermark++
		p.changed[key] = true
		p.pay(key, now)
	}
}

// Synchronise lets readers take what is not said for withdrawn.
func (p *Publisher) Synchronise() { p.synchronised = true }

// Certified notes that the key was certified anew.
func (p *Publisher) Certified(now time.Time) { p.certified = now }

// Answer answers the number of a reader, an instance of network, in the next
// statements. False: so many instances of that network wait for an answer that this
// one has to come again.
func (p *Publisher) Answer(reader record.Instance, network string, number uint64) bool {
	return number == 0 || p.answers.take(reader, network, number)
}

// ripen says what has waited long enough.
func (p *Publisher) ripen(now time.Time) (err error) {
	for key, paid := range p.paid {
		if !now.Before(paid) {
			delete(p.paid, key)
		}
	}
	for key, w := range p.waiting {
		if now.Before(w.due) {
			continue
		}
		delete(p.waiting, key)
		old, there := p.set.Get(key)
		switch {
		case w.entry == nil:
			p.remove(key, now)
		case there && old.Says(*w.entry): // it is as it was
		default:
			if e := p.put(*w.entry, now); e != nil {
				err = e
			}
		}
	}
	p.retry(now)
	return err
}

// Edges says whether something has changed since the last statement.
func (p *Publisher) Edges() bool { return len(p.changed) > 0 }

// Next returns when something that waits is due; zero if nothing does.
func (p *Publisher) Next() (next time.Time) {
	next = p.retryAt()
	for _, w := range p.waiting {
		if next.IsZero() || w.due.Before(next) {
			next = w.due
		}
	}
	return next
}

// Signed is a statement as it goes to readers.
type Signed struct {
	Statement *pb.SignedStatement
	Keys      []string // that have changed since the last
	// Copies say the same under the same count, each to one reader, whose number is
	// answered there alone: to answer all to all takes bytes for each pair of readers.
	Copies map[record.Instance]*pb.SignedStatement
}

// Statement signs the next statement: number is what this process has drawn as a reader.
// Readers that reaches says something of are sent their copies, if there are some.
func (p *Publisher) Statement(number uint64, reaches func(record.Instance) bool, now time.Time) (Signed, error) {
	p.count++
	s := &record.Statement{
		Instance: p.key.ID(), Count: p.count, Watermark: p.watermark, Root: p.set.Root(), Since: p.said,
		Number: number, Synchronised: p.synchronised,
	}
	keys := make([]string, 0, len(p.changed))
	size := 0
	for key, removed := range p.changed {
		keys = append(keys, key)
		size += len(key) + 32
		if e, ok := p.set.Get(key); ok && !removed {
			size += e.Size()
		}
	}
	slices.Sort(keys)
	if size <= maxChanges {
		p.list(s, keys)
	}
	copies := maxAnswers
	if len(keys) > 0 {
		copies = maxCopies
	}
	all, own := p.answers.next(reaches, copies)
	s.Answers = all
	m, err := p.sign(s, now)
	if err != nil {
		return Signed{}, err
	}
	clear(p.changed)
	p.said = p.watermark
	out := Signed{Statement: m, Keys: keys, Copies: make(map[record.Instance]*pb.SignedStatement, len(own))}
	for reader, number := range own {
		s.Answers = append(slices.Clip(all), number)
		if out.Copies[reader], err = p.sign(s, now); err != nil {
			return Signed{}, err
		}
	}
	return out, nil
}

func (p *Publisher) sign(s *record.Statement, now time.Time) (*pb.SignedStatement, error) {
	b, err := s.Encode()
	if err != nil {
		return nil, err
	}
	m := &pb.SignedStatement{Statement: b, Signature: p.key.Sign(b)}
	if p.count == 1 || now.Sub(p.certified) < introduced {
		m.Certificate = p.key.Certificate()
	}
	return m, nil
}

// list puts the changes into s. A removal has no sequence of its own left: that
// of the statement orders it after everything before.
func (p *Publisher) list(s *record.Statement, keys []string) {
	for _, key := range keys {
		if p.changed[key] {
			s.Removals = append(s.Removals, record.Removal{Key: key, Sequence: p.watermark})
		} else if e, ok := p.set.Get(key); ok {
			s.Changes = append(s.Changes, e)
		}
	}
}

func (p *Publisher) id() []byte {
	id := p.key.ID()
	return id[:]
}
