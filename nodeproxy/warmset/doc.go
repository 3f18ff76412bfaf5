// Package warmset decides with which endpoints of another network's share a node
// proxy keeps sessions, so that a connection costs one round trip and nobody has
// to list that network's pods.
//
// A [Set] belongs to one source identity, share and port. It learns endpoints from
// the answers of gateways: each of its slots holds one, over one of two gateways of its group. As
// many slots as there are endpoints: each is held once, chosen by its weight, and not
// renewed. Fewer slots: a slot that was used [usesPerSlot] times, more or less, or
// for [renewAfter], takes what the gateway chooses anew, so that in the end everybody
// has a turn. Where gateways reach different endpoints ([Share.Offers]), each group of
// them has as many slots as it has endpoints, or turns by their weight.
//
// It promises that there are never more slots than endpoints that may be chosen, nor
// than [MaxSlots]; that no slot holds an endpoint that is out, one whose identity may
// not answer, or one behind a gateway that is not usable; and that whoever asked for
// an endpoint to be opened is told whether to keep it and, once, when to end it.
//
// It is pure: time and randomness are arguments. It opens nothing, and waits for
// nothing: what it wants opened is asked for by [Set.Due]. A session that is full
// gets a second one from the session pool, which is keyed by the slot's endpoint. Not
// safe for concurrent use.
package warmset
