package healthstream

import (
	"maps"
	"slices"
	"time"
)

// Followed is one service that a node proxy follows, in a form for JSON.
type Followed struct {
	Service  string       `json:"service"`  // hostname
	Pinned   bool         `json:"pinned"`   // named by configuration: never forgotten
	Answered bool         `json:"answered"` // a gateway has told what it knows of it
	IdleMS   int64        `json:"idleMs"`   // since it was used last
	Networks []KnownShare `json:"networks"` // of which something is known
	Gateways []string     `json:"gateways"` // that tell of it now; without any, health is unknown after a minute
}

// dump describes what is followed, sorted.
func (s *services) dump() []Followed {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := []Followed{}
	for _, name := range slices.Sorted(maps.Keys(s.byName)) {
		f := s.byName[name]
		x := Followed{Service: name, Pinned: f.pinned, Answered: f.answered, Networks: []KnownShare{}, Gateways: []string{},
			IdleMS: (time.Since(s.start) - time.Duration(f.used.Load())).Milliseconds()}
		for l := range f.views {
			x.Gateways = append(x.Gateways, l.gateway)
		}
		slices.Sort(x.Gateways)
		for _, network := range slices.Sorted(maps.Keys(f.known)) {
			x.Networks = append(x.Networks, f.known[network].dump(network))
		}
		out = append(out, x)
	}
	return out
}
