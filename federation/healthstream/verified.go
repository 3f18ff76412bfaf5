package healthstream

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// Unproven is why something that a gateway of the own network has told is not taken as
// the word of another network's gateway; a closed set, for metrics.
type Unproven string

const (
	// Unsigned is a record without a signature, of an instance whose certificate is not
	// known or has signed nothing yet: one of an older version. Its health is taken; without
	// a certificate as long as no instance of that network is certified.
	Unsigned Unproven = "unsigned"
	// Stripped is a record without a signature, of an instance that signs.
	Stripped Unproven = "stripped"
	// Uncertified is a signed record of an instance whose certificate is not known, has
	// ended, or is another network's. Its health is taken, as long as no instance of that
	// network is certified.
	Uncertified Unproven = "uncertified"
	// Forged is a record that its instance has not signed.
	Forged Unproven = "forged"
	// Older is a record that is older than what was heard of it already.
	Older Unproven = "older"
	// Certificate is a certificate that none of the keys known of its network has signed,
	// or that has ended.
	Certificate Unproven = "certificate"
)

// Unprovens are all of them.
var Unprovens = []Unproven{Unsigned, Stripped, Uncertified, Forged, Older, Certificate}

const (
	// maxSpeakers is how many instances of one network are remembered; those whose
	// certificates have ended give way, then of the gateway that has most of them those
	// with the oldest certificates.
	maxSpeakers = 64
	// maxWords is how many records of one network's instances are remembered, so that
	// none older is taken: 2 000 services with an export and the health of three ports, of
	// two instances.
	maxWords = 16_000
	// maxProofs is how many instances one message may introduce: what fits a message of
	// a gateway that keeps to its bounds.
	maxProofs = 4096
)

// verified is the gateway instances of other networks that have proved who they are, and
// how far their word has come. No older one is taken, whoever brings it, as long as
// their certificates last: afterwards it would be worth nothing. Safe for concurrent
// use; it may be called with the lock of services held.
type verified struct {
	own string // network, of whose gateways nothing needs to be proven

	mu        sync.Mutex
	known     networkkey.Known
	instances map[record.Instance]*speaker
	words     map[string]int // by network
}

// speaker is an instance with a certificate that its network's key has signed.
type speaker struct {
	id      record.Instance
	network string
	gateway string
	ended   atomic.Bool  // no key of its network that is known vouches for it now
	issued  atomic.Int64 // its certificate, in Unix seconds by the clock of its network

	// Of verified.mu:
	raw         []byte
	certificate *networkkey.Certificate
	heard       map[string]word // by encoded key of the record
	signs       bool            // some record was its own word
	endedAt     time.Time       // when its certificate had ended, by the clock here; zero: it has not

	// body is what it says of itself; nil: nothing. It is not changed.
	body atomic.Pointer[record.Network]
}

// word is the newest of a record that was verified.
type word struct {
	sequence uint64
	sum      [sha256.Size]byte // of its body
}

func newVerified(own string, known networkkey.Known) *verified {
	return &verified{own: own, known: known, instances: map[record.Instance]*speaker{}, words: map[string]int{}}
}

// linked reports whether keys of another network are known.
func (v *verified) linked(network string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.linkedLocked(network)
}

func (v *verified) linkedLocked(network string) bool {
	return network != v.own && len(v.known[network]) > 0
}

// introduce takes what proves one instance. changed is its network if something else is
// proven than before. Of networks that are not linked nothing is kept, and nothing
// missed. A certificate that has ended is kept, and proves nothing: it is told once, and
// the clock here may be ahead.
func (v *verified) introduce(m *pb.Proof, now time.Time) (changed string, why Unproven, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	c, err := v.known.Verify(m.GetCertificate(), now)
	var refused *networkkey.RefusedError
	errors.As(err, &refused)
	switch {
	case refused != nil && refused.Reason == networkkey.UnknownNetwork, err == nil && c.Network == v.own:
		return "", "", nil
	case refused != nil && refused.Reason == networkkey.Expired && refused.Network != v.own:
		v.introduceEnded(m, now)
		return "", Certificate, err
	case err != nil:
		return "", Certificate, err
	}
	s := v.instances[c.Instance]
	if s == nil {
		if !v.room(c) {
			return "", Certificate, fmt.Errorf("%d instances of network %q are known, with later certificates: %w", maxSpeakers, c.Network, errTooMany)
		}
		s = v.add(m.GetCertificate(), c)
		changed = c.Network
	} else if c.NotAfter.After(s.certificate.NotAfter) {
		s.renew(m.GetCertificate(), c)
		if s.ended.Load() {
			s.ended.Store(false)
			s.endedAt, changed = time.Time{}, c.Network
		}
	}
	more, why, err := v.introduceBody(s, m)
	return cmp.Or(changed, more), why, err
}

// introduceBody takes what s says of itself. changed is its network if that is news. The
// caller holds mu.
func (v *verified) introduceBody(s *speaker, m *pb.Proof) (changed string, why Unproven, err error) {
	if m.GetNetwork() == nil {
		return "", "", nil
	}
	e := record.FromWire([]*pb.Entry{m.GetNetwork()})[0]
	if k, err := record.DecodeKey(e.Key); err != nil || k.Kind != record.KindNetwork {
		return "", Forged, fmt.Errorf("what instance %s says of itself is no network record", s.id)
	}
	before := s.heard[e.Key]
	if why := v.check(s, e); why != "" {
		if why == Unsigned {
			why = "" // an older version
		}
		return "", why, nil
	}
	if before.sequence == e.Sequence {
		return "", "", nil
	}
	r, err := e.Decode()
	if err != nil {
		return "", Forged, err
	}
	s.body.Store(r.Network)
	return s.network, "", nil
}

// introduceEnded keeps a certificate that has ended, if there is room; the caller holds mu.
func (v *verified) introduceEnded(m *pb.Proof, now time.Time) {
	c, err := v.known.Verify(m.GetCertificate(), time.Time{})
	if err != nil {
		return
	}
	s := v.instances[c.Instance]
	switch {
	case s == nil && v.number(c.Network) >= maxSpeakers:
		return
	case s == nil:
		s = v.add(m.GetCertificate(), c)
		s.ended.Store(true)
		s.endedAt = now
	case c.NotAfter.After(s.certificate.NotAfter):
		s.renew(m.GetCertificate(), c)
	}
	v.introduceBody(s, m) // what does not hold of it may be said again
}

// add adds an instance; the caller holds mu.
func (v *verified) add(raw []byte, c *networkkey.Certificate) *speaker {
	s := &speaker{id: c.Instance, network: c.Network, gateway: c.Gateway, heard: map[string]word{}}
	s.renew(raw, c)
	v.instances[c.Instance] = s
	return s
}

// renew gives s a certificate; the caller holds verified.mu.
func (s *speaker) renew(raw []byte, c *networkkey.Certificate) {
	s.raw, s.certificate = raw, c
	s.issued.Store(c.NotBefore.Unix())
}

// number returns how many instances of network are remembered; the caller holds mu.
func (v *verified) number(network string) (n int) {
	for _, s := range v.instances {
		if s.network == network {
			n++
		}
	}
	return n
}

var errTooMany = errors.New("too many")

// room makes room for one more instance of c's network; false if c is to give way itself.
// One whose certificate has ended goes first, then one of the gateway that has most: one
// that starts again and again displaces what it was before, and no other. The caller
// holds mu.
func (v *verified) room(c *networkkey.Certificate) bool {
	if v.number(c.Network) < maxSpeakers {
		return true
	}
	instances := map[string]int{c.Gateway: 1} // by gateway
	for _, s := range v.instances {
		if s.network == c.Network {
			instances[s.gateway]++
		}
	}
	var worst *speaker
	for _, s := range v.instances {
		if s.network == c.Network && (worst == nil || cmp.Or(
			cmp.Compare(truth(s.ended.Load()), truth(worst.ended.Load())),
			cmp.Compare(instances[s.gateway], instances[worst.gateway]),
			worst.certificate.NotBefore.Compare(s.certificate.NotBefore)) > 0) {
			worst = s
		}
	}
	if !worst.ended.Load() && instances[worst.gateway] == instances[c.Gateway] && c.NotBefore.Before(worst.certificate.NotBefore) {
		return false
	}
	v.end(worst)
	return true
}

// end forgets s; the caller holds mu.
func (v *verified) end(s *speaker) {
	s.ended.Store(true)
	delete(v.instances, s.id)
	if v.words[s.network] -= len(s.heard); v.words[s.network] <= 0 {
		delete(v.words, s.network)
	}
}

// record looks at e, which a gateway of the own network calls the word of an instance of
// network. why is empty if it is, or if nothing of that network needs to be proven: then
// there is no speaker.
func (v *verified) record(network string, id record.Instance, e record.Entry) (s *speaker, why Unproven) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.linkedLocked(network) {
		return nil, ""
	}
	s = v.instances[id]
	if s == nil || s.network != network || s.ended.Load() {
		if _, _, signed := e.Signed(network, id); signed {
			return nil, Uncertified
		}
		return nil, Unsigned
	}
	return s, v.check(s, e)
}

// certified returns the instance id of network, nil if no certificate of it is known.
func (v *verified) certified(network string, id record.Instance) *speaker {
	v.mu.Lock()
	defer v.mu.Unlock()
	if s := v.instances[id]; s != nil && s.network == network && !s.ended.Load() && v.linkedLocked(network) {
		return s
	}
	return nil
}

// certifies reports whether a certificate of the instance id of network is known.
func (v *verified) certifies(network string, id record.Instance) bool {
	return v.certified(network, id) != nil
}

// check looks whether e is the word of s, and the newest; what was looked at before is
// not verified again. The caller holds mu.
func (v *verified) check(s *speaker, e record.Entry) Unproven {
	if _, _, signed := e.Signed(s.network, s.id); !signed {
		if s.signs {
			return Stripped
		}
		return Unsigned
	}
	sum := sha256.Sum256(e.Body)
	old, heard := s.heard[e.Key]
	switch {
	case heard && old.sequence == e.Sequence && old.sum == sum:
		return ""
	case heard && old.sequence > e.Sequence:
		return Older
	case !s.certificate.Says(e):
		return Forged
	}
	if !heard {
		if v.words[s.network] >= maxWords {
			v.drop(s)
		}
		v.words[s.network]++
	}
	s.signs = true
	s.heard[e.Key] = word{e.Sequence, sum}
	return ""
}

// drop forgets a word of s's network, of s itself if it has any; the caller holds mu.
func (v *verified) drop(s *speaker) {
	for _, of := range v.instances {
		if len(s.heard) == 0 && of.network == s.network && len(of.heard) > 0 {
			s = of
		}
	}
	for key := range s.heard {
		delete(s.heard, key)
		v.words[s.network]--
		return
	}
}

// setKnown replaces the keys that are known. It returns the networks of instances for
// which none of them vouches any more.
func (v *verified) setKnown(known networkkey.Known) (ended []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known = known
	for _, s := range v.instances {
		c, err := known.Verify(s.raw, s.certificate.NotAfter)
		if err == nil && c.Network != v.own && bytes.Equal(c.Instance[:], s.id[:]) {
			continue
		}
		v.end(s)
		ended = append(ended, s.network)
	}
	return ended
}

// expire looks at certificates by the clock and returns the networks of those that have
// ended, or have not after all. It forgets those that have ended for as long as one can
// be valid: by then each instance that lives has another one.
func (v *verified) expire(now time.Time) (changed []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.instances {
		switch ended := !s.certificate.Valid(now); {
		case ended && !s.ended.Load():
			s.endedAt = now
			fallthrough
		case !ended && s.ended.Load():
			s.ended.Store(ended)
			changed = append(changed, s.network)
		case ended && now.Sub(s.endedAt) > networkkey.MaxLifetime:
			v.end(s)
		}
	}
	return changed
}
