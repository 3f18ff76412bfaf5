package discovery

import (
	"cmp"
	"strconv"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// Kind is what a record describes.
type Kind uint8

// The kinds, in the order in which they are read: none refers to a later one.
const (
	_ Kind = iota
	KindNetwork
	KindGateway
	KindService
	KindShare
	KindWorkload
	KindPolicy
	KindNamespace // of a cluster: of no record, but a source finds faults of it
	KindRootNamespace
)

var kindNames = [...]string{KindNetwork: "network", KindGateway: "gateway", KindService: "service", KindShare: "share", KindWorkload: "workload", KindPolicy: "policy", KindNamespace: "namespace", KindRootNamespace: "root namespace"}

func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return "mesh"
}

// Source is who says something. What a source says is judged by itself and by the
// sources before it, never by those after it: of two records that claim one thing the
// earlier source's has it, and that is no problem of the other one.
type Source uint8

// The sources.
const (
	Written Source = iota // whoever runs the mesh: a file
	Cluster               // the API server of the cluster that this process is in
	Told                  // the owners of other networks, of their own
	// derivedFromShares is the Builder itself, of services that only shares describe.
	derivedFromShares
)

// onNetwork reports whether objects of the kind are each on one network.
func (k Kind) onNetwork() bool { return k == KindGateway || k == KindShare || k == KindWorkload }

// Key names one record to its source, which chooses it: what the source says
// about the same Key later takes the place of what it said before. Two records
// with different keys may be of one name; then see Builder for who has it. Nth
// tells apart what a source would call the same. The zero Source is Written.
type Key struct {
	Kind   Kind
	Source Source
	Name   string
	Nth    int
}

func (k Key) compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Kind, o.Kind), cmp.Compare(k.Source, o.Source), cmp.Compare(k.Name, o.Name), cmp.Compare(k.Nth, o.Nth))
}

// String returns the object for people: workload "web-1".
func (k Key) String() string {
	if k.Kind == 0 {
		return k.Kind.String()
	}
	return k.Kind.String() + " " + strconv.Quote(k.Name)
}

// Change is one record as it is now. A nil Record says that there is none any
// more.
type Change struct {
	Key    Key
	Record Record
	// Faults is what the source itself has found wrong with the object, in the words of
	// the source: problems of Key from now on, also where no record came of it. Their
	// Object is set by the Builder, which does not keep the list.
	Faults []Problem
}

// Record is a Network, Gateway, Service, Share, Workload, Policy or RootNamespace, by value. A Builder keeps
// nothing of it that the caller could still change.
type Record interface {
	// kind tells which; it also keeps other types out.
	kind() Kind
	// read translates it and notes in r what is wrong.
	read(r *reader) reading
}

func (Network) kind() Kind  { return KindNetwork }
func (Gateway) kind() Kind  { return KindGateway }
func (Service) kind() Kind  { return KindService }
func (Workload) kind() Kind { return KindWorkload }
func (Policy) kind() Kind   { return KindPolicy }

// reading is what a record says by itself, whatever others there are.
type reading struct {
	network  *mesh.Network
	gateway  *mesh.Gateway
	service  *mesh.Service // without the aliases and virtual addresses that it may not get
	share    *mesh.Export
	folded   *folded
	workload *mesh.Workload
	policy   policy.Object

	created time.Time // of a share
	offers  []claim   // aliases that a share gives to a service that only shares describe
	refused []claim   // those that a network may not give to it

	rank   int     // of two that claim one thing, the one with the smaller rank has it
	claims []claim // without any of them the object cannot be used
	extras []claim // aliases and virtual addresses: each without which the rest still can
	on     string  // the network that it is on, if any
	refs   []ref   // services that a workload names
}

// scheduled reports whether it is a workload that has no address yet.
func (r *reading) scheduled() bool { return len(r.workload.Addresses) == 0 }

// claim is something that only one object can have.
type claim struct {
	what    claimed
	text    string
	path    at       // where the record says so
	contest *contest // who else claims it; set while the record is in a Builder
}

type claimed uint8

const (
	networkName claimed = iota
	gatewayName
	gatewayAddress
	hostName
	derivedName // an alias that follows from name and namespace
	aliasName
	sharedHost    // of a service that only shares describe: after all names that services have
	sharedDerived // the same of the alias that follows from its hostname
	sharedAlias   // the same of its other aliases
	virtualAddress
	shareName
	workloadUID
	workloadAddress
	policyName
)

// key is what claims of several records meet in.
func (c claim) key() claimKey { return claimKey{c.what, c.text} }

type claimKey struct {
	what claimed
	text string
}

// ref is a service as a workload names it.
type ref struct {
	name    string // in lower case
	written string
	mention *mention // set while the record is in a Builder
	place   int      // in mention.by
}
