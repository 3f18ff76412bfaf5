package ads

import "slices"

// collection holds the resources of one type, and the watches by subscribed key.
// [Server].mu guards it, its entries and its watches.
type collection struct {
	typeURL   string
	resources map[string]*entry
	byKey     map[string][]*entry
	watches   map[string]map[*watch]struct{} // by subscribed key
	wildcards map[*watch]struct{}
}

// entry is a resource in a collection.
type entry struct {
	name    string
	keys    []string // name, aliases and groups
	slots   []int    // positions in collection.byKey, in the order of keys
	version string
	encoded []byte // never modified: streams share it
}

func newCollection(typeURL string) *collection {
	return &collection{typeURL: typeURL, resources: map[string]*entry{}, byKey: map[string][]*entry{}, watches: map[string]map[*watch]struct{}{}, wildcards: map[*watch]struct{}{}}
}

// put adds or changes a resource.
func (c *collection) put(name string, keys []string, version string, encoded []byte) {
	e := c.resources[name]
	if e == nil {
		e = &entry{name: name}
		c.resources[name] = e
	}
	rekeyed := !slices.Equal(e.keys, keys)
	if e.version == version && !rekeyed {
		return
	}
	c.mark(e, e.version)
	if rekeyed {
		c.unindex(e)
		e.keys = keys
		c.index(e)
	}
	e.version, e.encoded = version, encoded
	c.mark(e, "") // watches that did not want it before
}

// remove removes a resource, if it exists.
func (c *collection) remove(name string) {
	e := c.resources[name]
	if e == nil {
		return
	}
	c.mark(e, e.version)
	c.unindex(e)
	delete(c.resources, name)
}

// mark makes e due in all watches that want it. has is the version that their
// clients have, unless e is due already.
func (c *collection) mark(e *entry, has string) {
	for w := range c.wildcards {
		w.change(e.name, has)
	}
	for _, k := range e.keys {
		for w := range c.watches[k] {
			w.change(e.name, has)
		}
	}
}

func (c *collection) index(e *entry) {
	e.slots = make([]int, len(e.keys))
	for i, k := range e.keys {
		e.slots[i] = len(c.byKey[k])
		c.byKey[k] = append(c.byKey[k], e)
	}
}

// unindex moves the last entry of each key into the slot of e, so the costs do not
// depend on the size of groups.
func (c *collection) unindex(e *entry) {
	for i, k := range e.keys {
		list := c.byKey[k]
		last := list[len(list)-1]
		list[e.slots[i]] = last
		last.slots[slices.Index(last.keys, k)] = e.slots[i]
		list[len(list)-1] = nil
		if list = list[:len(list)-1]; len(list) == 0 {
			delete(c.byKey, k)
		} else {
			c.byKey[k] = list
		}
	}
	e.keys, e.slots = nil, nil
}
