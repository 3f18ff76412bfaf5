package gossip

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

// refusedFor is how long a certificate that was refused is spoken of: whoever shows one
// that is not believed shows it again well within.
const refusedFor = 45 * time.Second

// refusals are the gateways, among those of discovery, whose certificates were refused
// last. The zero value is empty. Safe for concurrent use.
type refusals struct {
	mu sync.Mutex
	of map[string]refusal // by network/name, as the certificate says
}

type refusal struct {
	err error
	at  time.Time
}

// note takes in that err was found with a gateway. Of those that listed does not accept
// one is held for each network that linked accepts, and none otherwise: anybody can write
// any name into a certificate. Nor is held that no key of its network is known, which
// [Federation.Knows] tells.
func (r *refusals) note(err error, listed, linked func(name string) bool, now time.Time) {
	var x *networkkey.RefusedError
	if !errors.As(err, &x) || x.Network == "" || x.Reason == networkkey.UnknownNetwork {
		return
	}
	name := x.Network + "/" + x.Gateway
	if !listed(name) {
		if !linked(x.Network) {
			return
		}
		name = x.Network + "/"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[string]refusal{}
	}
	r.prune(now)
	r.of[name] = refusal{x, now}
}

// clear forgets all: other keys are known.
func (r *refusals) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.of)
}

// recent returns what was refused last of each, sorted.
func (r *refusals) recent(now time.Time) (list []error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.prune(now)
	for _, x := range r.of {
		list = append(list, x.err)
	}
	slices.SortFunc(list, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return list
}

// prune forgets what has not been seen again; the caller holds mu.
func (r *refusals) prune(now time.Time) {
	for name, x := range r.of {
		if now.Sub(x.at) > refusedFor {
			delete(r.of, name)
		}
	}
}

// Refused returns why gateways of discovery, and of networks that are linked, are not
// believed, sorted: of each the last certificate that was refused, if that was within a
// minute and by the keys that are known now. Those of networks of which no key is known are not among them.
func (f *Federation) Refused() []error { return f.refusals.recent(time.Now()) }

// KeysError is why the keys were not read when they were last to be; those read before
// are used. Nil: they were.
func (f *Federation) KeysError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.keysErr
}

// Knows reports whether any key of network is known.
func (f *Federation) Knows(network string) bool { return len(f.held().Known[network]) > 0 }

// KnownKeys are the keys that are believed of network; they are not to be changed.
func (f *Federation) KnownKeys(network string) []networkkey.Public { return f.held().Known[network] }

// KnownNetworks are the networks of which keys are known, sorted.
func (f *Federation) KnownNetworks() []string { return slices.Sorted(maps.Keys(f.held().Known)) }

func (f *Federation) noteRefusal(err error) {
	linked := func(network string) bool {
		_, door := f.transport.doors.get(network)
		return door || network == f.cfg.Network
	}
	f.refusals.note(err, func(name string) bool { return f.gateway(name) != nil }, linked, time.Now())
}
