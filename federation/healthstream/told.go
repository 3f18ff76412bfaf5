package healthstream

import (
	"errors"
	"maps"
	"slices"
	"time"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// told is what all streams say of f on network, one delivery of each instance. What an
// instance has signed goes before what anybody else says of it, and where there is an
// instance that its network's key vouches for, those without do not count. The caller
// holds mu.
func (s *services) told(f *followed, network string) []Delivery {
	said := map[record.Instance][]Delivery{}
	for _, view := range f.views {
		for _, d := range view[network].deliveries {
			said[d.Instance] = append(said[d.Instance], d)
		}
	}
	out := map[record.Instance]Delivery{}
	certified := false
	for id, of := range said {
		d := wordOf(of)
		for _, x := range of {
			if x.certified() {
				d.speaker, certified = x.speaker, true
			}
		}
		out[id] = d
	}
	for _, d := range s.withheld(f, network) {
		if now, ok := out[d.Instance]; !ok {
			out[d.Instance] = d
		} else if now.Export == nil && now.Proven() {
			now.Export = d.Export
			out[d.Instance] = now
		}
		certified = true
	}
	if certified {
		maps.DeleteFunc(out, func(_ record.Instance, d Delivery) bool { return !d.certified() })
	}
	return slices.SortedFunc(maps.Values(out), byInstance)
}

// withheld are the proven exports that were known of network and that no stream speaks of
// any more, as long as none does that holds all there is to know of that network: who
// does not know does not withdraw. Their health is unknown.
func (s *services) withheld(f *followed, network string) []Delivery {
	before, ok := f.known[network]
	if !ok || before.Offer == nil {
		return nil
	}
	for l := range f.views {
		if s.holds(l, network) {
			return nil
		}
	}
	var out []Delivery
	for _, d := range exportsOf(before.Deliveries) {
		if d.Proven() {
			out = append(out, d)
		}
	}
	return out
}

// wordOf is what counts of what streams say of one instance. Of what it has signed
// itself the newest of each record counts, whoever brings it; by what is withheld
// somewhere nothing is lost. What not all agree on that hear it is told by those.
func wordOf(said []Delivery) Delivery {
	proven := slices.DeleteFunc(slices.Clone(said), func(d Delivery) bool { return !d.Proven() })
	best := said[0]
	if len(proven) == 0 {
		for _, d := range said[1:] {
			if newer(d, best) {
				best = d
			}
		}
		return best
	}
	live := slices.ContainsFunc(proven, func(d Delivery) bool { return d.Live })
	best = Delivery{Instance: proven[0].Instance, Live: live, speaker: proven[0].speaker, proven: true, Health: map[uint16]record.Health{}, sequences: map[string]uint64{}}
	for _, d := range proven {
		if d.Live != live {
			continue
		}
		if d.changed.After(best.changed) {
			best.changed = d.changed
			best.Group, best.Draining = d.Group, d.Draining
		}
		best.add(d)
	}
	best.Gateway = best.speaker.gateway
	if b := best.speaker.body.Load(); b != nil {
		best.Group, best.Draining = b.Group, b.Draining
	}
	return best
}

// add takes what o has that is newer than what d has.
func (d *Delivery) add(o Delivery) {
	for key, sequence := range o.sequences {
		if sequence <= d.sequences[key] {
			continue
		}
		k, err := record.DecodeKey(key)
		if err != nil {
			continue
		}
		d.sequences[key] = sequence
		switch k.Kind {
		case record.KindExport:
			d.Export = o.Export
		case record.KindHealth:
			d.Health[k.Port] = o.Health[k.Port]
		}
	}
}

// introduce takes what proves instances.
func (s *services) introduce(l *uplink, m *pb.Proofs, now time.Time) error {
	if len(m.GetProofs()) > maxProofs {
		return malformed("%d proofs: want at most %d", len(m.GetProofs()), maxProofs)
	}
	changed := map[string]bool{}
	for _, p := range m.GetProofs() {
		network, why, err := s.proofs.introduce(p, now)
		if why != "" {
			var refused *networkkey.RefusedError
			named := network
			if errors.As(err, &refused) {
				named = refused.Network
			}
			s.unproven(l, named, record.Instance{}, "certificate", why, err)
		}
		if network != "" {
			changed[network] = true
		}
	}
	s.remerge(changed)
	s.askUncertified(changed)
	return nil
}

// askUncertified asks again for what instances of networks have said before they were
// certified: after their certificates had ended, say.
func (s *services) askUncertified(networks map[string]bool) {
	if len(networks) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.byName {
		for l, view := range f.views {
			for network := range networks {
				if slices.ContainsFunc(view[network].deliveries, func(d Delivery) bool {
					return !d.certified() && s.proofs.certified(network, d.Instance) != nil
				}) {
					l.subscribe(f.name, true)
				}
			}
		}
	}
}

// hold notes of which networks l knows all that there is to know.
func (s *services) hold(l *uplink, m *pb.Holdings) error {
	if len(m.GetNetworks()) > maxNetworks {
		return malformed("holdings of %d networks: want at most %d", len(m.GetNetworks()), maxNetworks)
	}
	holds, more := map[string]bool{}, map[string]bool{}
	for _, n := range m.GetNetworks() {
		if len(n) > record.MaxName {
			return malformed("network of %d bytes: want at most %d", len(n), record.MaxName)
		}
		holds[n] = true // also of one that is linked later: it is said once
	}
	s.mu.Lock()
	for n := range holds {
		more[n] = !l.holds[n]
	}
	l.holds = holds
	s.mu.Unlock()
	maps.DeleteFunc(more, func(_ string, m bool) bool { return !m })
	s.remerge(more)
	return nil
}

// holds says whether l knows all that there is to know of a linked network; the caller
// holds mu.
func (s *services) holds(l *uplink, network string) bool {
	return l.holds[network] && s.proofs.linked(network)
}

// held are the networks that any stream holds, sorted.
func (s *services) held() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	networks := map[string]bool{}
	for l := range s.links {
		maps.Copy(networks, l.holds)
	}
	return slices.Sorted(maps.Keys(networks))
}

// remerge brings up to date what is known of networks.
func (s *services) remerge(networks map[string]bool) {
	if len(networks) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	names := slices.Collect(maps.Keys(networks))
	for _, f := range s.byName {
		spoken := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !f.speaks(n) })
		if len(f.views) > 0 {
			s.merge(f, spoken)
			continue
		}
		for _, n := range spoken { // nobody speaks: what is known holds as far as it is proven still
			s.learn(f, n, knownOf(f.name, n, f.known[n].Deliveries, f.known[n], f.returns(n), time.Now()))
			s.note(Change{f.name, n})
		}
	}
}

// setKnown replaces the keys by which networks are known, and asks for everything again:
// of a network that was not linked nothing was kept. rekeyed is called in between, when
// nothing is judged by the old ones any more and the answers are still to come.
func (s *services) setKnown(known networkkey.Known, rekeyed func()) {
	ended := map[string]bool{}
	for _, n := range s.proofs.setKnown(known) {
		ended[n] = true
	}
	s.remerge(ended)
	rekeyed()
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.links {
		for name := range s.byName {
			l.subscribe(name, true)
		}
	}
}

// doubt asks gateways again for what they say of networks, both by name: for one service
// of each instance that is not certified, with which comes again what proves it.
func (s *services) doubt(doubted map[string]map[string]bool) {
	if len(doubted) == 0 {
		return
	}
	type instance struct {
		network string
		id      record.Instance
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.links {
		asked := map[instance]bool{}
		for network := range doubted[l.gateway] {
			for name, f := range s.byName {
				for _, d := range f.views[l][network].deliveries {
					if i := (instance{network, d.Instance}); !d.certified() && !asked[i] {
						asked[i] = true
						l.subscribe(name, true)
					}
				}
			}
		}
	}
}

// expire ends what certificates that have ended have proven. What has ended only because
// the clock was ahead holds again.
func (s *services) expire(now time.Time) {
	changed := map[string]bool{}
	for _, n := range s.proofs.expire(now) {
		changed[n] = true
	}
	s.remerge(changed)
	s.askUncertified(changed)
}

// keyName is what a log calls the record with this key.
func keyName(key string) string {
	k, err := record.DecodeKey(key)
	if err != nil {
		return "record"
	}
	return k.String()
}

// speaks reports whether anything is known or said of f on network.
func (f *followed) speaks(network string) bool {
	if _, ok := f.known[network]; ok {
		return true
	}
	for _, view := range f.views {
		if _, ok := view[network]; ok {
			return true
		}
	}
	return false
}
