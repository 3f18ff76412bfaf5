package healthstream

import (
	"bytes"
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
	// maxSpeakers is how many instances of one network are remembered; those with the
	// oldest certificates give way.
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
	ended   atomic.Bool // no key of its network that is known now vouches for it

	// Of verified.mu:
	raw         []byte
	certificate *networkkey.Certificate
	heard       map[string]word // by encoded key of the record
	signs       bool            // some record was its own word

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
// missed.
func (v *verified) introduce(m *pb.Proof, now time.Time) (changed string, why Unproven, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	c, err := v.known.Verify(m.GetCertificate(), now)
	var refused *networkkey.RefusedError
	switch {
	case errors.As(err, &refused) && refused.Reason == networkkey.UnknownNetwork, err == nil && c.Network == v.own:
		return "", "", nil
	case err != nil:
		return "", Certificate, err
	}
	s := v.instances[c.Instance]
	if s == nil {
		if !v.room(c) {
			return "", Certificate, fmt.Errorf("%d later certificates of network %q are known: %w", maxSpeakers, c.Network, errTooMany)
		}
		s = &speaker{id: c.Instance, network: c.Network, gateway: c.Gateway, raw: m.GetCertificate(), certificate: c, heard: map[string]word{}}
		v.instances[c.Instance] = s
		changed = c.Network
	} else if c.NotAfter.After(s.certificate.NotAfter) && c.Network == s.network {
		s.raw, s.certificate = m.GetCertificate(), c
	}
	if m.GetNetwork() == nil {
		return changed, "", nil
	}
	e := record.FromWire([]*pb.Entry{m.GetNetwork()})[0]
	if k, err := record.DecodeKey(e.Key); err != nil || k.Kind != record.KindNetwork {
		return changed, Forged, fmt.Errorf("what instance %s says of itself is no network record", s.id)
	}
	before := s.heard[e.Key]
	if why := v.check(s, e); why != "" {
		if why == Unsigned {
			why = "" // an older version
		}
		return changed, why, nil
	}
	if before.sequence == e.Sequence {
		return changed, "", nil
	}
	r, err := e.Decode()
	if err != nil {
		return changed, Forged, err
	}
	s.body.Store(r.Network)
	return s.network, "", nil
}

var errTooMany = errors.New("too many")

// room makes room for one more instance of c's network; false if all others have later
// certificates. The caller holds mu.
func (v *verified) room(c *networkkey.Certificate) bool {
	var oldest *speaker
	n := 0
	for _, s := range v.instances {
		if s.network != c.Network {
			continue
		}
		if n++; oldest == nil || s.certificate.NotBefore.Before(oldest.certificate.NotBefore) {
			oldest = s
		}
	}
	if n < maxSpeakers {
		return true
	}
	if c.NotBefore.Before(oldest.certificate.NotBefore) {
		return false
	}
	v.end(oldest)
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
	if s == nil || s.network != network {
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
	if s := v.instances[id]; s != nil && s.network == network && v.linkedLocked(network) {
		return s
	}
	return nil
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

// expire ends the instances whose certificates have ended and returns their networks.
func (v *verified) expire(now time.Time) (ended []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.instances {
		if !s.certificate.Valid(now) {
			v.end(s)
			ended = append(ended, s.network)
		}
	}
	return ended
}
