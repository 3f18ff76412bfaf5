package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// maxProblems is how many records of an instance that cannot be used are
// remembered with their reason; further ones are counted.
const maxProblems = 64

var (
	// ErrCertificate is a statement of an instance whose certificate is not known
	// or has ended: ask for a chunk, which has it.
	ErrCertificate = errors.New("no certificate of this instance")
	// ErrSignature is a statement that its instance has not signed.
	ErrSignature = errors.New("signature does not fit the statement")
	// ErrFull is an instance beyond the limits of its network.
	ErrFull = errors.New("limit of the network reached")
	// ErrBehind is a chunk that is older than what is known already.
	ErrBehind = errors.New("older than what is known")
)

// Outcome is what became of a statement.
type Outcome struct {
	Instance record.Instance
	Network  string
	// News says that the statement is newer than what was known; Complete, that
	// the ledger holds all that the newest statement vouches for.
	News, Complete bool
	Edges          bool   // it had changes
	Number         uint64 // drawn by the instance, to be answered
	Changes        []Change
}

// Offer takes a statement from wherever it came. Whoever relayed it can have
// withheld or delayed it, and nothing else.
func (l *Ledger) Offer(m *pb.SignedStatement, now time.Time) (Outcome, error) {
	s, err := record.DecodeStatement(m.GetStatement())
	if err != nil {
		return Outcome{}, err
	}
	i, err := l.find(s, m, now)
	if err != nil {
		return Outcome{Instance: s.Instance}, err
	}
	echo := i.own || s.Count == i.newest.Count || s.Count < i.newest.Count && i.complete // or old news
	if echo && !l.answeredBy(i, s) {
		o := i.outcome(nil)
		o.Edges = edges(s)
		return o, nil
	}
	if !i.certificate.Verify(m.GetStatement(), m.GetSignature()) {
		return Outcome{Instance: s.Instance, Network: i.certificate.Network}, ErrSignature
	}
	if s.Count <= i.newest.Count {
		i.newest.Answers = s.Answers // judge looks for ours: whatever i has said since, it has said later
	}
	if echo { // our copy, and another reader's came first
		i.judge(l)
		o := i.outcome(merged(l.follow(i, now)))
		o.Edges = edges(s)
		return o, nil
	}
	if s.Count < i.newest.Count {
		// It was overtaken, and something is missing. What is held may only be
		// brought forward by it: what is not there may have been removed since.
		changes := l.apply(i, s, true)
		i.judge(l)
		o := i.outcome(merged(append(append(changes, i.renewals()...), l.follow(i, now)...)))
		o.Edges = edges(s)
		return o, nil
	}
	var gone []Change
	if l.instances[i.id] == nil {
		var ok bool
		if gone, ok = l.room(i); !ok {
			return Outcome{Instance: s.Instance, Network: i.certificate.Network}, fmt.Errorf("network %q: %d instances: %w", i.certificate.Network, l.limits.Instances, ErrFull)
		}
		l.add(i)
	}
	changes := append(gone, l.apply(i, s, false)...)
	i.adopt(s, m, now)
	i.judge(l)
	o := i.outcome(merged(append(append(changes, i.renewals()...), l.follow(i, now)...)))
	o.News, o.Edges, o.Number = true, edges(s), s.Number
	return o, nil
}

// answeredBy says whether s answers a number of ours that is younger than what i has
// answered so far.
func (l *Ledger) answeredBy(i *instance, s *record.Statement) bool {
	return !i.own && slices.ContainsFunc(l.numbers, func(d drawn) bool { return d.at.After(i.attested) && slices.Contains(s.Answers, d.number) })
}

// renewals is what changes since i has another certificate than before: how it is
// introduced.
func (i *instance) renewals() (out []Change) {
	if i.renewed {
		out = []Change{{Network: i.certificate.Network, Key: record.Key{Kind: record.KindNetwork}}}
	}
	i.renewed = false
	return out
}

// edges says whether something has changed, told or too much to tell.
func edges(s *record.Statement) bool { return s.Since < s.Watermark }

func (i *instance) outcome(c []Change) Outcome {
	return Outcome{Instance: i.id, Network: i.certificate.Network, Complete: i.complete, Changes: c}
}

// find returns what is held of the statement's instance, or something new that
// is not held yet. A certificate that comes along is taken if it lasts longer.
func (l *Ledger) find(s *record.Statement, m *pb.SignedStatement, now time.Time) (*instance, error) {
	i := l.instances[s.Instance]
	if i != nil && i.own {
		return i, nil
	}
	raw := m.GetCertificate()
	if len(raw) > 0 && (i == nil || !bytes.Equal(raw, i.raw)) {
		c, err := l.known.Verify(raw, now)
		if err == nil {
			if err := c.Is(s.Instance); err != nil {
				return nil, err
			}
		}
		switch {
		case err != nil && i == nil:
			return nil, err
		case err == nil && i == nil:
			return &instance{id: s.Instance, certificate: c, raw: raw, set: record.NewSet(s.Instance, l.limits.Records, l.limits.Bytes)}, nil
		case err == nil && c.NotAfter.After(i.certificate.NotAfter):
			i.certificate, i.raw, i.renewed = c, raw, true
		}
	}
	if i == nil || !i.certificate.Valid(now) {
		return nil, fmt.Errorf("instance %s: %w", s.Instance, ErrCertificate)
	}
	return i, nil
}

// adopt makes s the newest statement of i.
func (i *instance) adopt(s *record.Statement, m *pb.SignedStatement, now time.Time) {
	i.newest = *s
	i.newest.Changes, i.newest.Removals, i.newest.Answers = nil, nil, nil
	i.statement, i.signature, i.heard = m.GetStatement(), m.GetSignature(), now
	i.newest.Answers = s.Answers // judge looks for ours and lets them go
}

// judge decides whether the newest statement vouches for what is held.
func (i *instance) judge(l *Ledger) {
	for _, a := range i.newest.Answers {
		for _, d := range l.numbers {
			if d.number == a && d.at.After(i.attested) {
				i.attested = d.at
			}
		}
	}
	i.newest.Answers = nil
	i.complete = i.set.Root() == i.newest.Root
	if i.complete {
		i.refused = nil
	}
	// It may have become complete later than it was said: then it counts from
	// when it was said.
	if i.complete && !i.attested.IsZero() && i.heard.Sub(i.attested) <= Fresh && i.heard.After(i.vouched) {
		if i.heard.Sub(i.vouched) > Silence {
			i.live = i.heard
		}
		i.vouched = i.heard
	}
}

// apply brings the records of i forward by the changes of s. With held only
// what is there is touched.
func (l *Ledger) apply(i *instance, s *record.Statement, held bool) (out []Change) {
	touched := func(key string) {
		if k, err := record.DecodeKey(key); err == nil {
			out = append(out, Change{Network: i.certificate.Network, Key: k})
		}
	}
	for _, e := range s.Changes {
		old, there := i.set.Get(e.Key)
		if !there && held || there && old.Sequence >= e.Sequence {
			continue
		}
		if err := l.put(i, e); err != nil {
			i.refused = err
			continue
		}
		touched(e.Key)
	}
	for _, r := range s.Removals {
		if old, there := i.set.Get(r.Key); there && old.Sequence < r.Sequence {
			i.set.Remove(r.Key)
			i.note(r.Key)
			touched(r.Key)
		}
	}
	return out
}

func (l *Ledger) put(i *instance, e record.Entry) error {
	if sum := l.networkBytes(i.certificate.Network) + e.Size(); sum > l.limits.NetworkBytes {
		return fmt.Errorf("network %q: %d bytes, limit %d: %w", i.certificate.Network, sum, l.limits.NetworkBytes, ErrFull)
	}
	if err := i.set.Put(e); err != nil {
		return err
	}
	i.note(e.Key)
	return nil
}

// note looks at a record that has changed: whether it can be used, and what it
// says of the gateway itself.
func (i *instance) note(key string) {
	delete(i.problems, key)
	isGateway := key == gatewayKey
	if isGateway {
		i.gateway = nil
	}
	e, ok := i.set.Get(key)
	i.index(key, ok)
	if !ok {
		return
	}
	r, err := e.Decode()
	switch {
	case err == nil && isGateway:
		i.gateway = r.Network
	case err == nil || errors.Is(err, record.ErrNewer):
	case len(i.problems) >= maxProblems:
		i.more++
	default:
		if i.problems == nil {
			i.problems = map[string]error{}
		}
		i.problems[key] = err
	}
}

// index keeps ports in line with what is held.
func (i *instance) index(key string, held bool) {
	k, err := record.DecodeKey(key)
	if err != nil || k.Kind != record.KindHealth {
		return
	}
	at := slices.Index(i.ports[k.Service], k.Port)
	switch {
	case held && at < 0:
		if i.ports == nil {
			i.ports = map[string][]uint16{}
		}
		i.ports[k.Service] = append(i.ports[k.Service], k.Port)
	case !held && at >= 0:
		if i.ports[k.Service] = slices.Delete(i.ports[k.Service], at, at+1); len(i.ports[k.Service]) == 0 {
			delete(i.ports, k.Service)
		}
	}
}

var gatewayKey = record.EncodeKey(record.Key{Kind: record.KindNetwork})

// OfferOwn makes what this process itself says part of the ledger. The set is
// shared: call it after each change.
func (l *Ledger) OfferOwn(m *pb.SignedStatement, set *record.Set, changed []string, now time.Time) (Outcome, error) {
	s, err := record.DecodeStatement(m.GetStatement())
	if err != nil {
		return Outcome{}, err
	}
	i := l.instances[s.Instance]
	if i == nil {
		c, err := l.known.Verify(m.GetCertificate(), now)
		if err != nil {
			return Outcome{}, fmt.Errorf("own statement: %w", err)
		}
		i = &instance{id: s.Instance, own: true, certificate: c, set: set}
		l.add(i)
	}
	if len(m.GetCertificate()) > 0 {
		i.raw = m.GetCertificate()
	}
	i.adopt(s, m, now)
	i.newest.Answers = nil
	i.complete = true
	var out []Change
	for _, key := range changed {
		i.note(key)
		if k, err := record.DecodeKey(key); err == nil {
			out = append(out, Change{Network: i.certificate.Network, Key: k})
		}
	}
	return i.outcome(merged(append(out, l.follow(i, now)...))), nil
}
