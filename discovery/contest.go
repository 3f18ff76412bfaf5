package discovery

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
)

// entry is one record in a Builder.
type entry struct {
	key      Key
	record   Record // as it was given
	reading  reading
	problems []Problem // of its own, whatever others there are
	faulty   bool      // by one of them
	in       bool      // it is used
	gone     bool      // the source has withdrawn or replaced it
	queued   bool
}

// before is the order in which records get what several claim: who may be chosen
// first, then the smaller key. It is total, and says nothing of arrival.
func (e *entry) before(o *entry) int {
	return cmp.Or(cmp.Compare(e.reading.rank, o.reading.rank), e.key.compare(o.key))
}

// contests are the claims: for each thing the records that claim it, the first
// in order first. A record that is out has nothing, so the next one has it.
type contests map[claimKey][]*entry

func (c contests) enter(e *entry, claims []claim) {
	for _, cl := range claims {
		k := cl.key()
		list := c[k]
		i, found := slices.BinarySearchFunc(list, e, (*entry).before)
		if !found {
			c[k] = slices.Insert(list, i, e)
		}
	}
}

func (c contests) leave(e *entry, claims []claim) {
	for _, cl := range claims {
		k := cl.key()
		if list := slices.DeleteFunc(c[k], func(o *entry) bool { return o == e }); len(list) > 0 {
			c[k] = list
		} else {
			delete(c, k)
		}
	}
}

// holder returns the first that is in, or nil.
func (c contests) holder(k claimKey) *entry {
	for _, e := range c[k] {
		if e.in {
			return e
		}
	}
	return nil
}

// named returns the service that has name: as its hostname, else by its name and
// namespace, else as an alias that it was given. So nobody takes a service's name
// by giving it to another one.
func (c contests) named(name string) *entry {
	for _, what := range namesOfServices {
		if e := c.holder(claimKey{what, name}); e != nil {
			return e
		}
	}
	return nil
}

// namesOfServices are the ways to have a name, the strongest first.
var namesOfServices = []claimed{hostName, derivedName, aliasName}

// claimsName reports whether any service, used or not, claims name.
func (c contests) claimsName(name string) bool {
	return slices.ContainsFunc(namesOfServices, func(what claimed) bool { return len(c[claimKey{what, name}]) > 0 })
}

// lost returns the first of e's claims that a better record has, and that record.
func (c contests) lost(e *entry) (claim, *entry) {
	for _, cl := range e.reading.claims {
		for _, o := range c[cl.key()] {
			if o == e {
				break
			}
			if o.in {
				return cl, o
			}
		}
	}
	return claim{}, nil
}

// queue holds the entries of one kind that must be looked at, the best first:
// what becomes of an entry depends on better ones alone, so each is looked at
// once.
type queue []*entry

func (q *queue) add(e *entry) {
	if !e.queued && !e.gone {
		e.queued = true
		heap.Push(q, e)
	}
}

func (q *queue) next() *entry {
	e := heap.Pop(q).(*entry)
	e.queued = false
	return e
}

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].before(q[j]) < 0 }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)        { *q = append(*q, x.(*entry)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}

// conflict says who has cl, which e claims in vain.
func (e *entry) conflict(r *reader, cl claim, has *entry, out bool) {
	text, whose := cl.text, ""
	switch cl.what {
	case networkName:
		whose = "is also the name of another network: give each network its own name"
	case gatewayName:
		_, text, _ = strings.Cut(cl.text, "/")
		whose = "is also the name of another gateway of its network: give each gateway its own name"
	case gatewayAddress:
		whose = "is also an address of " + has.key.String() + ": give each gateway its own address or port"
	case hostName, derivedName, aliasName:
		whose = "is also a name of " + has.key.String() + ": give each service its own names"
	case virtualAddress:
		whose = "is also a virtual address of " + has.key.String() + ": give each service its own virtual addresses"
	case workloadUID:
		whose = "is also the uid of another workload: give each workload its own"
	case workloadAddress:
		var network string
		network, text, _ = strings.Cut(cl.text, " ")
		whose = "is also an address of " + has.key.String() + " on network \"" + network + "\": give each workload on a network its own addresses"
	}
	r.note(out, CauseConflict, cl.path, text, "%s", whose)
}
