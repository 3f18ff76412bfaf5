package healthstream

import (
	"bytes"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

// Gateway is an instance of another network's gateway that has proved what it says of
// itself, and speaks of a service that is followed.
type Gateway struct {
	Name     string // by its certificate
	Instance record.Instance
	Live     bool            // false: this is its last word
	Issued   time.Time       // its certificate, by the clock of its network
	Body     *record.Network // not to be changed
}

// voices counts, by network, in how many of all shares that are known an instance of that
// network has proved what it says: gateways of a network are asked for with each change of
// any of its services.
type voices map[string]map[*speaker]voiceCount

type voiceCount struct{ shares, live int }

// count adds what deliveries of network say, by times, 1 or -1.
func (v voices) count(network string, deliveries []Delivery, by int) {
	for i := range deliveries {
		d := &deliveries[i]
		if !d.proven || d.speaker == nil {
			continue
		}
		of := v[network]
		if of == nil {
			of = map[*speaker]voiceCount{}
			v[network] = of
		}
		n := of[d.speaker]
		n.shares, n.live = n.shares+by, n.live+by*truth(d.Live)
		if of[d.speaker] = n; n.shares > 0 {
			continue
		}
		if delete(of, d.speaker); len(of) == 0 {
			delete(v, network)
		}
	}
}

// learn replaces what is known of f on network; the caller holds mu.
func (s *services) learn(f *followed, network string, k Known) {
	s.voices.count(network, f.known[network].Deliveries, -1)
	f.known[network] = k
	s.voices.count(network, k.Deliveries, 1)
}

// unlearn forgets what is known of f on network; the caller holds mu.
func (s *services) unlearn(f *followed, network string) {
	s.voices.count(network, f.known[network].Deliveries, -1)
	delete(f.known, network)
	if s.observes {
		s.emptied[f.name] = struct{}{}
	}
}

// gateways returns those of network, sorted by instance.
func (s *services) gateways(network string) (out []Gateway) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for x, n := range s.voices[network] {
		if b := x.body.Load(); b != nil && !x.ended.Load() {
			out = append(out, Gateway{Name: x.gateway, Instance: x.id, Live: n.live > 0, Issued: time.Unix(x.issued.Load(), 0), Body: b})
		}
	}
	slices.SortFunc(out, func(a, b Gateway) int { return bytes.Compare(a.Instance[:], b.Instance[:]) })
	return out
}
