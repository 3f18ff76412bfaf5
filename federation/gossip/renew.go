package gossip

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/antientropy"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

// renew reads the keys now and then, and certifies this instance anew at half
// of the life of its certificate, and when another key signs.
func (f *Federation) renew(ctx context.Context) {
	tick := time.NewTicker(f.cfg.KeysInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		f.reread()
	}
}

// reread takes the keys as they are now; those that cannot be read, as they were.
func (f *Federation) reread() {
	keys, err := f.cfg.Keys()
	if err != nil {
		f.rare.Sample(f.cfg.Log.Warn(), "", "keys").Err(err).Msg("network keys not read: those read before are used")
		keys = f.held()
	}
	f.mu.Lock()
	f.keysErr = err
	f.mu.Unlock()
	f.rekey(keys)
}

func (f *Federation) held() Keys {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.keys
}

func (f *Federation) rekey(keys Keys) {
	f.do(func(n *antientropy.Node, now time.Time) error {
		changed := !maps.EqualFunc(keys.Known, f.keys.Known, slices.Equal[[]networkkey.Public])
		if changed {
			outputs, changes := n.SetKnown(keys.Known, now)
			f.cfg.Log.Info().Int("networks", len(keys.Known)).Msg("networks known by their keys have changed")
			f.transport.keep(keys.Known)
			f.refusals.clear()
			f.emit(outputs, changes)
		}
		other := keys.Network.Public() != f.keys.Network.Public()
		if f.keys = keys; changed || other {
			defer f.transport.redial()
		}
		if !other && !f.instance.Due(now) {
			return nil
		}
		if err := keys.Network.Certify(f.instance, f.cfg.Network, f.cfg.Name, now, f.cfg.timing.lifetime); err != nil {
			return err
		}
		n.Publisher().Certified(now)
		return nil
	})
}
