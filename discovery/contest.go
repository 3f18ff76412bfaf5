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
	outside  bool      // a workload that is not used, whatever others there are
	in       bool      // it is used
	gone     bool      // the source has withdrawn or replaced it

	// Of the batch that is being collected.
	queued bool
	fresh  bool // its problems must be found again
	noted  bool // what must be derived again since it changed is noted
}

// before is the order in which records get what several claim: the earlier source,
// then who may be chosen first, then the smaller key. It is total, and says nothing of arrival.
func (e *entry) before(o *entry) int {
	return cmp.Or(cmp.Compare(e.key.Source, o.key.Source), cmp.Compare(e.reading.rank, o.reading.rank), e.key.compare(o.key))
}

// contests are the claims, by what is claimed.
type contests map[claimKey]*contest

// contest is the records that claim one thing, the first in order first. A record
// that is out has nothing, so the next one has it.
type contest struct {
	list  []*entry
	alone [1]*entry // the list while there is one, as there nearly always is
}

func (c contests) enter(e *entry, claims []claim) {
	for i := range claims {
		cl := &claims[i]
		k := cl.key()
		cl.contest = c[k]
		if cl.contest == nil {
			cl.contest = &contest{alone: [1]*entry{e}}
			cl.contest.list = cl.contest.alone[:]
			c[k] = cl.contest
			continue
		}
		at, found := slices.BinarySearchFunc(cl.contest.list, e, (*entry).before)
		if !found {
			cl.contest.list = slices.Insert(cl.contest.list, at, e)
		}
	}
}

func (c contests) leave(e *entry, claims []claim) {
	for _, cl := range claims {
		cl.contest.list = slices.DeleteFunc(cl.contest.list, func(o *entry) bool { return o == e })
		if len(cl.contest.list) == 0 {
			delete(c, cl.key())
		}
	}
}

// all returns the records that claim k.
func (c contests) all(k claimKey) []*entry {
	if at := c[k]; at != nil {
		return at.list
	}
	return nil
}

// holder returns the first of those that claim k that is in, or nil.
func (c contests) holder(k claimKey) *entry { return c[k].holder() }

func (c *contest) holder() *entry {
	if c != nil {
		for _, e := range c.list {
			if e.in {
				return e
			}
		}
	}
	return nil
}

// named returns the service that has name: as its hostname, else by its name and
// namespace, else as an alias that it was given. So nobody takes a service's name
// by giving it to another one.
func (c contests) named(name string) *entry {
	if e := c.listed(name); e != nil {
		return e
	}
	if e := c.holder(claimKey{sharedHost, name}); e != nil {
		return e
	}
	has, given := c.holder(claimKey{sharedDerived, name}), c.holder(claimKey{sharedAlias, name})
	if has == nil || given != nil && given.reading.rank < has.reading.rank { // by the earlier source
		return given
	}
	return has
}

// listed is named, of the services that a record lists: no share makes a name of its
// network lead elsewhere.
func (c contests) listed(name string) (has *entry) {
	for _, what := range namesOfServices {
		if e := c.holder(claimKey{what, name}); e != nil && (has == nil || e.key.Source < has.key.Source) {
			has = e
		}
	}
	return has
}

// namesOfServices are the ways to have a name, the strongest first; namesByShares
// those of services that only shares describe, which come after them.
var (
	namesOfServices = []claimed{hostName, derivedName, aliasName}
	namesByShares   = []claimed{sharedHost, sharedDerived, sharedAlias}
)

// claimsName reports whether any service, used or not, claims name.
func (c contests) claimsName(name string) bool {
	return slices.ContainsFunc(namesOfServices, func(what claimed) bool { return c[claimKey{what, name}] != nil })
}

// contested reports whether others claim what e claims.
func (c contests) contested(e *entry) bool {
	for _, cl := range e.reading.claims {
		if len(cl.contest.list) > 1 {
			return true
		}
	}
	return c.given(e, func(*entry) bool { return true }) != nil
}

// lost returns the first of e's claims that a better record has, and that record.
func (c contests) lost(e *entry) (claim, *entry) {
	for _, cl := range e.reading.claims {
		for _, o := range cl.contest.list {
			if o == e {
				break
			}
			if o.in && cl.between(e, o) {
				return cl, o
			}
		}
	}
	if o := c.given(e, func(o *entry) bool { return o.in }); o != nil {
		return e.reading.claims[0], o
	}
	return claim{}, nil
}

// given returns the first service, of those that are wanted, to which an earlier source gives the hostname
// of e beside its own: what that source says is not judged by what e says.
func (c contests) given(e *entry, wanted func(*entry) bool) *entry {
	for _, cl := range e.reading.claims {
		if cl.what != hostName {
			continue
		}
		for _, what := range namesOfServices[1:] {
			for _, o := range c.all(claimKey{what, cl.text}) {
				if o.key.Source < e.key.Source && wanted(o) {
					return o
				}
			}
		}
	}
	return nil
}

// between reports whether only one of e and o can have what cl claims. One address may
// stand for several gateways of a network, the replicas behind a load balancer. Where its
// gateways are a network says of itself alone: what another one says evicts none of them,
// unless whoever runs the mesh has written it.
func (cl claim) between(e, o *entry) bool {
	return cl.what != gatewayAddress || e.key.Source != o.key.Source || e.key.Source != Told && e.reading.on != o.reading.on
}

// queue holds the entries of one kind that must be looked at. What becomes of an
// entry depends on better ones alone that claim the same: so the best come first,
// and each is looked at once. In a batch the order is asked for last, because
// nearly nobody is contested, and to sort everybody costs more than the rest.
type queue struct {
	claims contests
	batch  []*entry // in no order
	sorted ranking
}

func (q *queue) add(e *entry) {
	if !e.queued && !e.gone {
		e.queued = true
		q.batch = append(q.batch, e)
	}
}

// next returns the next entry to look at, or nil.
func (q *queue) next() *entry {
	for len(q.batch) > 0 {
		last := len(q.batch) - 1
		e := q.batch[last]
		q.batch[last], q.batch = nil, q.batch[:last]
		if !e.gone && q.claims.contested(e) {
			heap.Push(&q.sorted, e)
			continue
		}
		e.queued = false
		return e
	}
	if len(q.sorted) == 0 {
		return nil
	}
	e := heap.Pop(&q.sorted).(*entry)
	e.queued = false
	return e
}

// ranking is a heap of entries, the best at its top.
type ranking []*entry

func (r ranking) Len() int           { return len(r) }
func (r ranking) Less(i, j int) bool { return r[i].before(r[j]) < 0 }
func (r ranking) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *ranking) Push(x any)        { *r = append(*r, x.(*entry)) }
func (r *ranking) Pop() any {
	last := len(*r) - 1
	e := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
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
		whose = "is also an address of " + has.key.String() + ": gateways share one within a network alone, and in one source: correct one of them"
	case shareName:
		_, text, _ = strings.Cut(cl.text, " ")
		whose = "is also a share of its network under another entry: list the share of each service on a network once"
	case hostName, derivedName, aliasName, sharedHost, sharedDerived, sharedAlias:
		whose = "is also a name of " + has.key.String() + ": give each service its own names"
	case virtualAddress:
		whose = "is also a virtual address of " + has.key.String() + ": give each service its own virtual addresses"
	case workloadUID:
		whose = "is also the uid of another workload: give each workload its own"
	case policyName:
		whose = "is also the name of another policy, which alone is in force: give each policy of a namespace its own name"
	case workloadAddress:
		var network string
		network, text, _ = strings.Cut(cl.text, " ")
		whose = "is also an address of " + has.key.String() + " on network \"" + network + "\": give each workload on a network its own addresses"
	}
	r.note(out, CauseConflict, cl.path, text, "%s", whose)
}
