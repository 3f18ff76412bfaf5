package healthstream

import (
	"maps"
	"slices"
	"time"
)

// Followed is one service that a node proxy follows, in a form for JSON.
type Followed struct {
	Service  string       `json:"service"`  // hostname
	Pinned   bool         `json:"pinned"`   // named in the configuration: never removed
	Answered bool         `json:"answered"` // a gateway has answered the subscription
	IdleMS   int64        `json:"idleMs"`   // time since its last use
	Networks []KnownShare `json:"networks"` // networks with reports
	Gateways []string     `json:"gateways"` // gateways that report on it now; without any, health becomes unknown after a minute
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
