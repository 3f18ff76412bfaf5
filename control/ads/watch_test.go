package ads

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// reader is a client of one watch, without a network, and what it should get.
type reader struct {
	t       *rapid.T
	of      *collection
	watch   *watch
	woken   bool
	fixed   []string
	exists  map[string]Resource
	keys    map[string]bool // subscribed
	all     bool
	held    map[string]string // versions by name
	pending map[string]bool   // keys without an answer
	again   map[string]bool   // keys of which the resource may be sent once more
}

func (r *reader) wants(x Resource) bool {
	return r.all || slices.ContainsFunc(x.keys(), func(k string) bool { return r.keys[k] || slices.Contains(r.fixed, k) })
}

// open connects anew, with what is held.
func (r *reader) open(subscribe, unsubscribe []string) {
	if r.watch != nil {
		r.watch.close()
	}
	r.watch = newWatch(r.of, r.fixed, func() { r.woken = true })
	held := maps.Clone(r.held)
	for k := range r.pending { // as stock ztunnel does
		if held[k] != "" {
			delete(r.pending, k)
		} else {
			held[k] = ""
		}
	}
	r.watch.open(subscribe, unsubscribe, held)
}

// take receives one response, if one is due.
func (r *reader) take() bool {
	m := r.watch.take()
	if m == nil {
		return false
	}
	sent := map[string]bool{}
	for _, encoded := range m.Resources {
		x, err := decode(encoded, r.of.typeURL)
		if err != nil {
			r.t.Fatal(err)
		}
		now, exists := r.exists[x.Name]
		_, version, _ := now.encode(r.of.typeURL)
		switch {
		case !exists || !r.wants(now):
			r.t.Fatalf("%s was sent; it is not subscribed", x.Name)
		case x.Version != version:
			r.t.Fatalf("%s was sent in version %q; it has %q", x.Name, x.Version, version)
		case r.held[x.Name] == version && !r.again[x.Name]:
			r.t.Fatalf("%s was sent; the client has that version", x.Name)
		}
		r.held[x.Name], sent[x.Name] = version, true
		delete(r.pending, x.Name)
		delete(r.again, x.Name)
	}
	for _, name := range m.RemovedResources {
		_, held := r.held[name]
		if sent[name] || !held && !r.pending[name] && !r.again[name] {
			r.t.Fatalf("%s was removed; sent with it %v, held %v", name, sent[name], held)
		}
		delete(r.held, name)
		delete(r.pending, name)
		delete(r.again, name)
	}
	if len(m.RemovedResources) > 0 && len(r.watch.queue) > 0 { // only full responses are followed by others
		r.t.Fatal("a removal was sent before an addition")
	}
	return true
}

// drain receives until nothing is due and compares with the model.
func (r *reader) drain() {
	for r.take() {
	}
	want := map[string]string{}
	for name, x := range r.exists {
		if r.wants(x) {
			_, want[name], _ = x.encode(r.of.typeURL)
		}
	}
	if !maps.Equal(r.held, want) {
		r.t.Fatalf("holds %v; want %v with keys %v", r.held, want, r.keys)
	}
	if len(r.pending) > 0 {
		r.t.Fatalf("no answer for %v", r.pending)
	}
	if w := r.watch; len(w.due)+len(w.queue)+len(w.gone)+len(w.asked) > 0 {
		r.t.Fatalf("left over: due %v, queue %v, gone %v, asked %v", w.due, w.queue, w.gone, w.asked)
	}
}

// check holds the invariants of the watch and the collection.
func (r *reader) check() {
	w := r.watch
	listed := slices.Sorted(slices.Values(slices.Concat(w.queue, w.gone)))
	if due := slices.Sorted(maps.Keys(w.due)); !slices.Equal(due, listed) {
		r.t.Fatalf("due %v, queue and gone %v", due, listed)
	}
	if most := max(minSweep, 2*(len(r.exists)+len(r.held)+2)); len(w.due) > most {
		r.t.Fatalf("%d names are due; want at most %d for %d resources and %d held", len(w.due), most, len(r.exists), len(r.held))
	}
	for k, list := range r.of.byKey {
		for i, e := range list {
			if at := slices.Index(e.keys, k); at < 0 || e.slots[at] != i || r.of.resources[e.name] != e {
				r.t.Fatalf("index of %s is wrong at %d", k, i)
			}
		}
	}
}

func TestWatchSendsWhatIsWanted(t *testing.T) {
	defer func(n int) { minSweep = n }(minSweep)
	rapid.Check(t, func(t *rapid.T) {
		minSweep = rapid.SampledFrom([]int{1, 64}).Draw(t, "least sweep")
		r := &reader{t: t, of: newCollection(typeA), fixed: []string{"node/n1"}, exists: map[string]Resource{}, keys: map[string]bool{"never": true}, held: map[string]string{}, pending: map[string]bool{}, again: map[string]bool{}}
		r.open([]string{"never"}, nil)
		r.pending["never"] = true
		names := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint("r", rapid.IntRange(1, 8).Draw(t, "name")) })
		groups := rapid.SampledFrom([]string{"s1", "s2", "node/n1", "alias/r1", "alias/r2"})
		keys := rapid.OneOf(names, groups)
		bodies := [][]byte{nil, []byte("x"), bytes.Repeat([]byte("y"), maxChunk)}
		put := func(t *rapid.T) {
			x := Resource{Name: names.Draw(t, "name"), Body: bodies[rapid.IntRange(0, 2).Draw(t, "body")], Groups: rapid.SliceOfN(groups, 0, 2).Draw(t, "groups")}
			x.Groups = slices.DeleteFunc(x.Groups, func(g string) bool { return strings.HasPrefix(g, "alias") })
			x.Aliases = []string{"alias/" + x.Name}
			old, existed := r.exists[x.Name]
			r.woken = false
			encoded, version, err := x.encode(typeA)
			if err != nil {
				t.Fatal(err)
			}
			r.of.put(x.Name, x.keys(), version, encoded)
			r.exists[x.Name] = x
			if r.woken && !r.wants(x) && !(existed && r.wants(old)) {
				t.Fatal("woken by a change that is not subscribed")
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"":    func(t *rapid.T) { r.check() },
			"put": put, "put again": put,
			"remove": func(t *rapid.T) {
				name := names.Draw(t, "name")
				r.of.remove(name)
				delete(r.exists, name)
			},
			"subscribe": func(t *rapid.T) {
				k := keys.Draw(t, "key")
				r.watch.subscribe([]string{k})
				r.keys[k], r.pending[k], r.again[k] = true, true, true
			},
			"unsubscribe": func(t *rapid.T) {
				k := keys.Draw(t, "key")
				r.watch.unsubscribe([]string{k})
				delete(r.keys, k)
				if !slices.Contains(r.fixed, k) {
					delete(r.pending, k)
				}
			},
			"wildcard": func(t *rapid.T) {
				if r.all = !r.all; r.all {
					r.watch.subscribe([]string{wildcard})
				} else {
					r.watch.unsubscribe([]string{wildcard})
				}
			},
			"take":  func(t *rapid.T) { r.take() },
			"drain": func(t *rapid.T) { r.drain() },
			"reconnect": func(t *rapid.T) {
				names := slices.Sorted(maps.Keys(r.keys))
				if !r.all && len(names) == 0 {
					t.Skip("nothing is subscribed")
				}
				clear(r.again)
				clear(r.pending) // our client asks for all names again
				for _, k := range names {
					if r.held[k] == "" {
						r.pending[k] = true
					}
				}
				if r.all {
					names = append(names, wildcard)
				}
				r.open(names, nil)
			},
			"reconnect on demand": func(t *rapid.T) {
				r.keys, r.all = map[string]bool{}, false
				for _, m := range []map[string]bool{r.pending, toSet(r.held)} {
					maps.Copy(r.keys, m)
				}
				r.open([]string{wildcard}, []string{wildcard})
			},
		})
		r.drain()
	})
}

func toSet(m map[string]string) map[string]bool {
	out := map[string]bool{}
	for k := range m {
		out[k] = true
	}
	return out
}

// A client that has a resource asks for it while it is absent. When it returns
// unchanged before a response, it is sent again: the client waits for an answer.
func TestWatchAnswersReaddedResource(t *testing.T) {
	c := newCollection(typeA)
	add := func() { c.put("r", []string{"r"}, "v", []byte("encoded")) }
	add()
	w := newWatch(c, nil, func() {})
	w.open([]string{"r"}, nil, nil)
	w.take()
	c.remove("r")
	w.subscribe([]string{"r"})
	add()
	if m := w.take(); len(m.GetResources()) != 1 {
		t.Errorf("response %v; want the resource", m)
	}
}
