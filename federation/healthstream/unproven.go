package healthstream

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

const (
	// maxUnprovens is how many kinds of what is not proven are remembered.
	maxUnprovens = 64
	// unprovenFor is how long that is shown.
	unprovenFor = 5 * time.Minute
	// unprovenAsked is how often a gateway is asked again for what no key vouched for: it
	// introduces an instance once, and what is wrong is shown while it lasts.
	unprovenAsked = unprovenFor - time.Minute
	// maxUnprovenOf is of how many instances each is remembered: of as many as a share has.
	maxUnprovenOf = maxInstances
)

// unprovens counts, logs and remembers for a while what is not taken as the word of
// other networks' gateways. Safe for concurrent use.
type unprovens struct {
	log     zerolog.Logger
	metrics *peer.Metrics

	mu   sync.Mutex
	last map[unprovenKey]unproven
}

// unprovenKey is one line for people: who brings what sort of thing, of whom.
type unprovenKey struct {
	gateway, network string
	why              Unproven
}

type unproven struct {
	of           map[record.Instance]string // what, by instance; zero: of none in particular
	last         record.Instance            // that was noted
	detail       string
	count        int
	shown, noted time.Time
	asked        time.Time // its gateway, again; at first when it was noted first
}

// what names the record that was noted last, and whose it is.
func (x unproven) what() string {
	if x.last == (record.Instance{}) {
		return x.of[x.last]
	}
	return x.of[x.last] + " of instance " + x.last.String()
}

// unprovenEvery is how often a line says that a gateway goes on with it.
const unprovenEvery = time.Minute

// note takes in that a gateway of the own network has brought what is not the word of an
// instance of network.
func (u *unprovens) note(l *uplink, network string, id record.Instance, what string, why Unproven, err error) {
	u.metrics.Unproven.WithLabelValues(string(why)).Inc()
	u.mu.Lock()
	k, now := unprovenKey{l.gateway, network, why}, time.Now()
	x, there := u.last[k]
	if !there {
		u.forget(now)
	}
	if now.Sub(x.noted) >= unprovenFor { // it begins, or begins anew
		x.of, x.asked = map[record.Instance]string{}, now
	}
	if _, ok := x.of[id]; !ok && len(x.of) >= maxUnprovenOf {
		delete(x.of, x.last)
	}
	x.of[id], x.last, x.noted = what, id, now
	if x.detail = ""; err != nil {
		x.detail = err.Error()
	}
	x.count++
	tell := x.shown.IsZero() || now.Sub(x.shown) >= unprovenEvery
	if tell {
		x.shown = now
	}
	u.last[k] = x
	of := x.what()
	u.mu.Unlock()
	if !tell {
		return
	}
	level := zerolog.WarnLevel
	if why == Older || why == Unsigned { // a gateway that is behind; a network of an older version
		level = zerolog.InfoLevel
	}
	u.log.WithLevel(level).Err(err).Str("gateway", l.gateway).Str("network", network).Str("record", of).Str("reason", string(why)).
		Int("count", x.count).Msg("not proven: not taken as the word of that network's gateway")
}

// byKeys says whether other keys that are known may prove it.
func (why Unproven) byKeys() bool { return why == Certificate || why == Uncertified }

// rekeyed forgets what other keys may prove: it is asked for again, and what still is not
// proven noted anew.
func (u *unprovens) rekeyed() {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.last, func(k unprovenKey, _ unproven) bool { return k.why.byKeys() })
}

// certified forgets what was not taken for lack of a certificate of instances that are
// certified by now: what was on its way while a key was added, say. It is asked for again.
func (u *unprovens) certified(is func(network string, id record.Instance) bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for k, x := range u.last {
		if k.why != Uncertified {
			continue
		}
		maps.DeleteFunc(x.of, func(id record.Instance, _ string) bool { return is(k.network, id) })
		if _, still := x.of[x.last]; still {
			continue
		}
		delete(u.last, k)
		for x.last = range x.of {
			u.last[k] = x
			break
		}
	}
}

// doubted returns of which networks each gateway is to be asked again for what no key
// vouched for: once in unprovenAsked, however much news there is of them.
func (u *unprovens) doubted(now time.Time) map[string]map[string]bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	var doubted map[string]map[string]bool
	for k, x := range u.last {
		if !k.why.byKeys() || now.Sub(x.noted) >= unprovenFor || now.Sub(x.asked) < unprovenAsked {
			continue
		}
		if doubted == nil {
			doubted = map[string]map[string]bool{}
		}
		if doubted[k.gateway] == nil {
			doubted[k.gateway] = map[string]bool{}
		}
		doubted[k.gateway][k.network] = true
	}
	for k, x := range u.last {
		if doubted[k.gateway][k.network] {
			x.asked = now
			u.last[k] = x
		}
	}
	return doubted
}

// forget makes room for one more; the caller holds mu.
func (u *unprovens) forget(now time.Time) {
	if u.last == nil {
		u.last = map[unprovenKey]unproven{}
	}
	for k, x := range u.last {
		if now.Sub(x.noted) >= unprovenFor {
			delete(u.last, k)
		}
	}
	for len(u.last) >= maxUnprovens {
		var oldest unprovenKey
		for k, x := range u.last {
			if o, ok := u.last[oldest]; !ok || x.noted.Before(o.noted) {
				oldest = k
			}
		}
		delete(u.last, oldest)
	}
}

// list is what was noted lately, and needs somebody to look, in words.
func (u *unprovens) list(now time.Time) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []string
	for k, x := range u.last {
		if now.Sub(x.noted) >= unprovenFor || k.why == Older {
			continue
		}
		detail := cmp.Or(x.detail, explainUnproven[k.why])
		out = append(out, fmt.Sprintf("not proven: %s of network %.80q, as gateway %s tells it (%s): %.300s", x.what(), k.network, k.gateway, k.why, detail))
	}
	slices.SortFunc(out, strings.Compare)
	return out
}

// explainUnproven says what each means, and what to do about it.
var explainUnproven = map[Unproven]string{
	Unsigned:    "a gateway there, or here, is of an older version: its health is taken, what it offers is not",
	Stripped:    "it has signed other records: that gateway here is not to be trusted",
	Uncertified: "no valid certificate for this instance",
	Forged:      "that instance has not signed it: that gateway here is not to be trusted",
}
