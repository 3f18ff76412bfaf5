package ads

import (
	"iter"
	"maps"
	"slices"

	pb "github.com/isthmus-mesh/isthmus/control/ads/adspb"
)

const (
	// maxChunk is the size in bytes at which a response is full. A stream whose peer does not
	// read holds one response.
	maxChunk = 64 << 10
	// anyVersion is an unknown version, other than "" for none.
	anyVersion = "?"
)

// watch is what one stream subscribes of one type. [Server].mu guards it.
//
// It does not store what the client has. That is the current version of each
// wanted resource, except of those in due.
type watch struct {
	of     *collection
	wake   func()
	fixed  []string // keys that cannot be unsubscribed
	keys   map[string]struct{}
	all    bool // wildcard
	answer bool // a response is due, even an empty one

	due     map[string]string   // resource name → version that the client has, "" for none
	queue   []string            // names in due, in the order of their changes
	gone    []string            // names in due that left the queue as removals
	asked   map[string]struct{} // subscribed keys without a response
	sweepAt int                 // see change
}

// minSweep is the least length of due at which [watch.change] drops names. Tests lower
// it.
var minSweep = 64

func newWatch(of *collection, fixed []string, wake func()) *watch {
	return &watch{of: of, wake: wake, fixed: fixed, keys: map[string]struct{}{}, answer: true, sweepAt: minSweep}
}

// open subscribes for the first time: the fixed keys, and what the client names.
// held are the versions that the client has, by name.
func (w *watch) open(subscribe, unsubscribe []string, held map[string]string) {
	for _, k := range w.fixed {
		w.add(k, held)
	}
	star, unstar := slices.Contains(subscribe, wildcard), slices.Contains(unsubscribe, wildcard)
	switch {
	case star && unstar: // Stock ztunnel on demand lists the names that it requested. Without an answer yet, the version is "".
		for name, version := range held {
			w.add(name, held)
			if version == "" {
				w.ask(name)
			}
		}
	case star || len(subscribe) == 0 && !unstar:
		w.addAll(held)
	}
	for _, k := range subscribe {
		if k != wildcard {
			w.add(k, held)
			if held[k] == "" {
				w.ask(k)
			}
		}
	}
	w.unsubscribe(unsubscribe)
	for name, version := range held {
		if version != "" {
			w.mark(name, version) // not wanted, unless it is due already
		}
	}
	w.wake()
}

// subscribe adds keys. A resource of that name is sent even if the client has it,
// as the protocol wants it.
func (w *watch) subscribe(keys []string) {
	for _, k := range keys {
		if k == wildcard {
			w.addAll(nil)
			continue
		}
		w.add(k, nil)
		w.ask(k)
	}
	w.wake()
}

// unsubscribe removes keys. Resources that no other key wants become due as
// removals.
func (w *watch) unsubscribe(keys []string) {
	for _, k := range keys {
		list := w.of.byKey[k]
		switch _, has := w.keys[k]; {
		case k == wildcard && w.all:
			w.all = false
			delete(w.of.wildcards, w)
			list = slices.Collect(maps.Values(w.of.resources))
		case has && !slices.Contains(w.fixed, k):
			w.forget(k)
		default:
			continue
		}
		for _, e := range w.unwanted(slices.Values(list)) {
			w.mark(e.name, e.version)
		}
	}
}

// add subscribes a key. Resources become due unless another key wants them already.
func (w *watch) add(key string, held map[string]string) {
	if _, has := w.keys[key]; has {
		return
	}
	fresh := w.unwanted(slices.Values(w.of.byKey[key]))
	w.keys[key] = struct{}{}
	if w.of.watches[key] == nil {
		w.of.watches[key] = map[*watch]struct{}{}
	}
	w.of.watches[key][w] = struct{}{}
	w.markAll(fresh, held)
}

// addAll is add for all resources of the type.
func (w *watch) addAll(held map[string]string) {
	if w.all {
		return
	}
	fresh := w.unwanted(maps.Values(w.of.resources))
	w.all = true
	w.of.wildcards[w] = struct{}{}
	w.markAll(fresh, held)
}

// unwanted returns the entries that are not subscribed.
func (w *watch) unwanted(entries iter.Seq[*entry]) (out []*entry) {
	for e := range entries {
		if !w.wants(e) {
			out = append(out, e)
		}
	}
	return out
}

// markAll makes entries due that were subscribed just now. held are the versions
// that the client has.
func (w *watch) markAll(entries []*entry, held map[string]string) {
	if w.due == nil {
		w.due = make(map[string]string, len(entries))
	}
	w.queue = slices.Grow(w.queue, len(entries))
	for _, e := range entries {
		w.mark(e.name, held[e.name])
	}
}

// ask makes a response to key due: the resource of that name, or else the key in
// removed_resources.
func (w *watch) ask(key string) {
	if w.asked == nil {
		w.asked = map[string]struct{}{}
	}
	w.asked[key] = struct{}{}
	if w.of.resources[key] != nil {
		w.mark(key, anyVersion)
	}
	if w.due[key] != "" { // it would not be sent if that is the current version
		w.due[key] = anyVersion
	}
}

// forget removes the subscription of a key.
func (w *watch) forget(key string) {
	delete(w.keys, key)
	delete(w.asked, key)
	if delete(w.of.watches[key], w); len(w.of.watches[key]) == 0 {
		delete(w.of.watches, key)
	}
}

// close removes all subscriptions.
func (w *watch) close() {
	for k := range w.keys {
		w.forget(k)
	}
	delete(w.of.wildcards, w)
}

// wants reports whether a resource is subscribed. Nil is not.
func (w *watch) wants(e *entry) bool {
	if e == nil || w.all {
		return e != nil
	}
	for _, k := range e.keys {
		if _, has := w.keys[k]; has {
			return true
		}
	}
	return false
}

// mark makes a resource due, unless it is. has is the version that the client has.
func (w *watch) mark(name, has string) {
	if _, due := w.due[name]; due {
		return
	}
	if w.due == nil {
		w.due = map[string]string{}
	}
	w.due[name] = has
	w.queue = append(w.queue, name)
	w.wake()
}

// change is mark for a change of the collection. It drops names of resources that were
// added and removed before they were sent. So due is bounded by the resources that exist
// and those that the client has.
func (w *watch) change(name, has string) {
	if w.mark(name, has); len(w.due) < w.sweepAt {
		return
	}
	maps.DeleteFunc(w.due, func(name, has string) bool { return has == "" && !w.wants(w.of.resources[name]) })
	idle := func(name string) bool { _, due := w.due[name]; return !due }
	w.queue, w.gone = slices.DeleteFunc(w.queue, idle), slices.DeleteFunc(w.gone, idle)
	w.sweepAt = max(minSweep, 2*len(w.due))
}

// take returns the next response, or nil if none is due.
func (w *watch) take() *pb.DeltaDiscoveryResponse {
	out, size := &pb.DeltaDiscoveryResponse{TypeUrl: w.of.typeURL}, 0
	for len(w.queue) > 0 && size < maxChunk {
		name := w.queue[0]
		w.queue = w.queue[1:]
		switch e := w.of.resources[name]; {
		case w.wants(e):
			size += w.send(out, e)
		case w.due[name] == "":
			delete(w.due, name)
		default:
			w.gone = append(w.gone, name)
		}
	}
	if len(w.queue) == 0 {
		w.finish(out)
	}
	if len(out.Resources)+len(out.RemovedResources) == 0 && !w.answer {
		return nil
	}
	w.answer = false
	return out
}

// send adds a resource to out, unless the client has it, and returns its size.
func (w *watch) send(out *pb.DeltaDiscoveryResponse, e *entry) int {
	has := w.due[e.name]
	delete(w.due, e.name)
	if has == e.version {
		return 0
	}
	out.Resources = append(out.Resources, e.encoded)
	return len(e.encoded)
}

// finish adds removals and keys that name no resource to the last response of a
// series.
func (w *watch) finish(out *pb.DeltaDiscoveryResponse) {
	for _, name := range w.gone {
		if e := w.of.resources[name]; w.wants(e) { // it is back
			w.send(out, e)
		} else {
			out.RemovedResources = append(out.RemovedResources, name)
			delete(w.asked, name)
		}
	}
	for k := range w.asked {
		if w.of.resources[k] == nil {
			out.RemovedResources = append(out.RemovedResources, k)
		}
	}
	w.due, w.queue, w.gone, w.asked, w.sweepAt = nil, nil, nil, nil, minSweep
}
