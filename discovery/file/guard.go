package file

import (
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// Guard says which changes of a file are held until somebody confirms them: a
// file that was cut off, or is another mesh's, must not take every process's
// view away at once.
type Guard struct {
	// Network is that of the process: a file that no longer lists it is held.
	// Empty holds no file for this.
	Network string
	// MaxRemoval is the largest part, in (0, 1], of the workloads, of the listed services,
	// of the capacity of the listed shares, of the listed gateways, and of the policies, that
	// one change may remove. A service whose last workload goes counts as removed. Zero is
	// DefaultMaxRemoval; 1 holds nothing for this.
	MaxRemoval float64
}

const (
	// DefaultMaxRemoval is a Guard's MaxRemoval unless it says otherwise.
	DefaultMaxRemoval = 0.3
	// freeRemovals is how many workloads a change may always remove, how many services, how
	// much of the capacity of shares, which counts as as many workloads, and how many gateways
	// if each of their networks has another one left: in a mesh of three pods one is a third.
	freeRemovals = 2
)

// inventory is what is in force: a snapshot, what is kept of workloads that it does not
// hold, and which of its objects are the file's alone.
type inventory struct {
	*mesh.Snapshot
	elsewhere discovery.Elsewhere
	alone     func(discovery.Key) bool // nil: all are
}

// written reports whether an object is there by the file alone, and not by what others tell.
func (i inventory) written(kind discovery.Kind, name string) bool {
	return i.alone == nil || i.alone(discovery.Key{Kind: kind, Name: name})
}

// each yields the UID of each workload that the file lists.
func (i inventory) each(yield func(uid string)) {
	for _, w := range i.Workloads() {
		if i.written(discovery.KindWorkload, w.UID) {
			yield(w.UID)
		}
	}
	for n := range i.elsewhere.Len() {
		yield(i.elsewhere.UID(n))
	}
}

// size is how many workloads there are.
func (i inventory) size() int { return i.NumWorkloads() + i.elsewhere.Len() }

// serves reports whether the file lists a workload of svc.
func (i inventory) serves(svc *mesh.Service) bool {
	return svc != nil && (i.elsewhere.Serves(svc.Hostname) ||
		slices.ContainsFunc(i.Networks(svc), func(network string) bool {
			return slices.ContainsFunc(i.Members(svc, network), func(w *mesh.Workload) bool { return i.written(discovery.KindWorkload, w.UID) })
		}))
}

// objection says why next may not follow old unconfirmed; "" if it may.
func (g Guard) objection(old, next inventory) string {
	if g.Network != "" && old.HasNetwork(g.Network) && !next.HasNetwork(g.Network) {
		return fmt.Sprintf("it removes network %q, which this process is on", g.Network)
	}
	limit := g.MaxRemoval
	if limit == 0 {
		limit = DefaultMaxRemoval
	}
	services := servicesGone(old, next)
	var why []string
	for _, r := range []removal{workloadsGone(old, next), services, capacityGone(old, next), gatewaysGone(old, next), policiesGone(old, next)} {
		if r.exceeds(limit) {
			why = append(why, fmt.Sprintf("it removes %d of %d%s, more than %.6g %%: %s", r.gone, r.before, r.what, 100*limit, few(r.names)))
		}
	}
	if names := emptied(old, next); why != nil && len(names) > 0 && !services.exceeds(limit) {
		why = append(why, "no workload is left of "+few(names))
	}
	return strings.Join(why, "; ")
}

// removal is what a change removes of one kind.
type removal struct {
	gone, before uint64
	what         string   // of which there were so many before
	names        []string // of what is gone, or has become less
	bare         bool     // a network is left without any
}

func (r removal) exceeds(limit float64) bool {
	return (r.gone > freeRemovals || r.bare) && float64(r.gone)/float64(r.before) > limit
}

func workloadsGone(old, next inventory) removal {
	r := removal{what: " workloads"}
	there := make(map[string]struct{}, next.size())
	next.each(func(uid string) { there[uid] = struct{}{} })
	old.each(func(uid string) {
		r.before++
		if _, still := there[uid]; !still {
			r.names = append(r.names, uid)
		}
	})
	slices.Sort(r.names)
	r.gone = uint64(len(r.names))
	return r
}

// policiesGone counts the policies: without one more may connect than before. So it is with one that
// was for every namespace, and is for its own alone, and with one of whose workloads, though they are still
// there, none has its labels any more.
func policiesGone(old, next inventory) removal {
	r := removal{what: " policies"}
	there := map[policy.Name]policy.Object{}
	is := selectors{set: next.Policies(), workloads: next.Workloads}
	for _, o := range is.set.Objects() {
		there[o.Name()] = o
	}
	was := selectors{set: old.Policies(), workloads: func() []*mesh.Workload {
		return slices.DeleteFunc(old.Workloads(), func(w *mesh.Workload) bool { return next.Workload(w.UID) == nil })
	}}
	for _, o := range was.set.Objects() {
		n := o.Name()
		now := there[n]
		if r.before++; now == nil || n.Namespace == was.set.Root() && n.Namespace != is.set.Root() || was.forAnybody(o) && !is.forAnybody(now) {
			r.names = append(r.names, n.String())
		}
	}
	r.gone = uint64(len(r.names))
	return r
}

// selectors find whether policies of a set are for any workload.
type selectors struct {
	set       *policy.Set
	workloads func() []*mesh.Workload
	labelled  map[label][]*mesh.Workload // nil: nobody has asked yet
}

type label struct{ namespace, key, value string } // of every namespace: ""

// forAnybody reports whether o is for any workload.
func (s *selectors) forAnybody(o policy.Object) bool {
	a, is := o.(*policy.Authorization)
	if !is || len(a.Selector) == 0 {
		return true
	}
	if s.labelled == nil {
		s.labelled = map[label][]*mesh.Workload{}
		for _, w := range s.workloads() {
			for k, v := range w.Labels {
				for _, l := range []label{{w.Namespace, k, v}, {"", k, v}} {
					s.labelled[l] = append(s.labelled[l], w)
				}
			}
		}
	}
	namespace := a.Namespace
	if namespace == s.set.Root() {
		namespace = ""
	}
	var fewest []*mesh.Workload
	first := true
	for k, v := range a.Selector {
		if list := s.labelled[label{namespace, k, v}]; first || len(list) < len(fewest) {
			fewest, first = list, false
		}
	}
	return slices.ContainsFunc(fewest, func(w *mesh.Workload) bool { return a.Selector.Selects(w.Labels) })
}

// servicesGone counts the services that the file lists: those that it lists no more, or that
// cannot be used any more, and those of which it lists no workload any more.
func servicesGone(old, next inventory) removal {
	r := removal{what: " services, or their last workloads"}
	for _, svc := range old.Services() {
		name := svc.Namespace + "/" + svc.Name
		if !old.written(discovery.KindService, name) {
			continue // shares describe it, or somebody else
		}
		r.before++
		left := next.Service(svc.Hostname)
		if left == nil || !next.written(discovery.KindService, name) || old.serves(svc) && !next.serves(left) {
			r.names = append(r.names, svc.Hostname)
		}
	}
	r.gone = uint64(len(r.names))
	return r
}

// capacityGone counts the shares that the file lists, each as the workloads that it stands
// for: they may be all that a process knows of another network.
func capacityGone(old, next inventory) removal {
	r := removal{what: " that the shares count"}
	for _, svc := range old.Services() {
		for _, network := range old.Networks(svc) {
			x := old.Told(svc, network)
			if x == nil || len(old.Members(svc, network)) > 0 {
				continue
			}
			name := network + "/" + x.Namespace + "/" + x.Name
			if !old.written(discovery.KindShare, name) {
				continue
			}
			before, left := uint64(x.Capacity), uint64(0)
			if s, ok := next.Share(svc, network); ok {
				left = uint64(s.Capacity)
			}
			r.before += before
			if left < before {
				r.gone += before - left
				r.names = append(r.names, name)
			}
		}
	}
	return r
}

// gatewaysGone counts the gateways that the file lists.
func gatewaysGone(old, next inventory) removal {
	r := removal{what: " gateways"}
	for _, network := range old.GatewayNetworks() {
		gone, left := len(r.names), len(next.Gateways(network))
		for _, g := range old.Gateways(network) {
			name := network + "/" + g.Name
			if !old.written(discovery.KindGateway, name) {
				left++
				continue
			}
			r.before++
			if !slices.ContainsFunc(next.Gateways(network), func(o *mesh.Gateway) bool { return o.Name == g.Name }) {
				r.names = append(r.names, name)
			}
		}
		r.bare = r.bare || len(r.names) > gone && left == 0
	}
	r.gone = uint64(len(r.names))
	return r
}

// emptied returns the services of next whose last workload it takes away, and
// those with workloads that it removes, by hostname.
func emptied(old, next inventory) []string {
	var out []string
	for _, svc := range old.Services() {
		if old.serves(svc) && !next.serves(next.Service(svc.Hostname)) {
			out = append(out, svc.Hostname)
		}
	}
	return out
}

// maxNamed is how many names a message lists.
const maxNamed = 5

// few lists the first few names.
func few(names []string) string {
	if n := len(names) - maxNamed; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), n)
	}
	return strings.Join(names, ", ")
}

// identifier names the content of c, which data says, apart from Confirm, in twelve
// hexadecimal digits: the same for every process that reads the same description,
// whatever its comments, layout and order of keys, and whichever keys other versions know.
func identifier(c discovery.Config, data []byte) string {
	c.Confirm = ""
	c.Shares = slices.Clone(c.Shares)
	for i := range c.Shares {
		if _, ok := c.Shares[i].Since(); !ok {
			c.Shares[i].Created = time.Time{} // it counts for nothing, and JSON has no word for it
		}
	}
	if plain, err := json.Marshal(setOf(reflect.ValueOf(c), reflect.ValueOf(discovery.DefaultConfig()))); err == nil {
		data = plain
	} // else no line confirm: can name it, but the command can: better than nobody who carries traffic
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6])
}

// setOf returns v for JSON: of a struct the fields that differ from those of unset, by their keys in the file.
func setOf(v, unset reflect.Value) any {
	if _, text := v.Interface().(encoding.TextMarshaler); text {
		return v.Interface()
	}
	switch v.Kind() {
	case reflect.Pointer:
		return setOf(v.Elem(), reflect.Zero(v.Type().Elem()))
	case reflect.Slice:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = setOf(v.Index(i), reflect.Zero(v.Type().Elem()))
		}
		return list
	case reflect.Struct:
		set := map[string]any{}
		for i := range v.NumField() {
			if x := v.Field(i); !reflect.DeepEqual(x.Interface(), unset.Field(i).Interface()) {
				set[v.Type().Field(i).Tag.Get("yaml")] = setOf(x, reflect.Zero(x.Type()))
			}
		}
		return set
	}
	return v.Interface()
}
