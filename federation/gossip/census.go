package gossip

import (
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
)

// census brings alive up to date; the caller holds mu.
func (f *Federation) census() {
	listed := map[string]bool{}
	for _, g := range f.cfg.Peers() {
		listed[g.Network+"/"+g.Name] = true
	}
	f.members.forget(listed, time.Now())
	alive := f.alive[:0:0]
	others, missing := 0, 0
	for _, s := range f.node.Ledger().Status() {
		if s.Phase == ledger.Live {
			name := s.Network + "/" + s.Gateway
			_, behind := f.transport.doors.get(s.Network)
			if s.Own || listed[name] && f.members.alive(name, s.Instance) || !listed[name] && behind {
				alive = append(alive, name)
			}
			if !s.Own {
				others++
			}
		} else if !s.Complete {
			missing++
		}
	}
	slices.Sort(alive)
	alive = slices.Compact(alive)
	for _, name := range alive {
		if !slices.Contains(f.alive, name) {
			f.cfg.Log.Info().Str("member", name).Msg("federation member joined")
		}
	}
	for _, name := range f.alive {
		if !slices.Contains(alive, name) {
			f.cfg.Log.Info().Str("member", name).Msg("federation member lost")
		}
	}
	f.alive = alive
	f.cfg.Metrics.Members.Set(float64(len(alive)))
	if others > 0 && missing == 0 {
		f.setSynced()
	}
}

// Members returns the names (network/name) of the gateways of which memberlist
// holds an instance for alive that is believed now, this one included, sorted; of those behind
// a door, which are no members of memberlist, those of which one is believed.
func (f *Federation) Members() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alive
}
