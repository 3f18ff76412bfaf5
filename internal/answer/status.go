// Package answer has the forms of what processes answer to operators at /status and
// /explain, and the sentences that the command line makes of them.
package answer

import (
	"fmt"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/policy"
)

// Status is what one process believes of services: the JSON of /status.
type Status struct {
	Process  string    `json:"process"`  // its kind and name
	Network  string    `json:"network"`  // its own
	Version  string    `json:"version"`  // from what it was built
	Now      time.Time `json:"now"`      // by its clock
	Services []Row     `json:"services"` // of which it knows something: a gateway those of its own network
	// Group is that of a gateway, which names those that reach the same pods; empty: none.
	Group string `json:"group,omitempty"`
	// Gateways are those that are out. By a node proxy: those of other networks by its own
	// evidence or because the own gateways hear others there and not them, and those of its own
	// that it has no health stream to.
	Gateways []Gateway `json:"gateways"`
	// Local are the ports of pods beside a node proxy that are out, as it has
	// witnessed itself: workload UID and target port.
	Local []standing.Out `json:"local"`
	// Captured is how many pods of its node a node proxy captures; nil: it is told to capture none.
	Captured *int `json:"captured,omitempty"`
	// Nameless is how many of these have no resolver that could be captured, so that names are not answered in them.
	Nameless int `json:"nameless,omitempty"`
	// Releasing says that a node proxy captures nothing, and takes rules of its mesh out of the pods of its node.
	Releasing bool `json:"releasing,omitempty"`
	// Uncaptured is why pods of its node are not captured; it is among Problems too.
	Uncaptured []string `json:"uncaptured,omitempty"`
	// Heard are the gateways of all networks, as a gateway hears them.
	Heard []Heard `json:"heard,omitempty"`
	// Keys are those by which a gateway's network is known.
	Keys []Key `json:"keys,omitempty"`
	// Known are the keys that a gateway believes of other networks.
	Known        []Known `json:"known,omitempty"`
	Rotation     string  `json:"rotation,omitempty"`     // how far the rotation of the own network's key is
	RotationNext string  `json:"rotationNext,omitempty"` // what comes next in it; empty: nothing
	// Pending is what the process waits for before it is ready, as /healthz/ready says it.
	Pending []string `json:"pending,omitempty"`
	// Problems are what of the discovery file is not in force or not used, and of a
	// gateway: what it would tell others of its services and cannot, which nodes it hears
	// nothing of, and whose words it does not believe.
	Problems []string `json:"problems,omitempty"`
	// Warnings are what is in force and does not do what it was written for, as far as this process can
	// tell: policies that are for no workload, or name ports of services on which their pods do not listen, and principals that do not name the clients of a linked
	// network, by a gateway, or by a node proxy that has a discovery file.
	Warnings []string `json:"warnings,omitempty"`
	// Unrouted is what is in force and leads nowhere by its addresses: services that lead to other networks and have no
	// virtual address, where pods are captured; captured pods without a route for virtual addresses; gateways on loopback
	// addresses, where others are not.
	Unrouted []string `json:"unrouted,omitempty"`
	// Unguarded are the pods beside a node proxy whose policies deny connections in plain text, all or some, while
	// these reach them without coming to it: by which policies, and what to do.
	Unguarded []string `json:"unguarded,omitempty"`
	// Detached says that no gateway of its network tells a node proxy what is known.
	Detached bool `json:"detached,omitempty"`
	// Lines are, by a node proxy, the TCP connections to gateways of other networks.
	Lines []Line `json:"lines,omitempty"`
	// Controller is what a controller says of itself.
	Controller *Controller `json:"controller,omitempty"`
}

// PolicyWarnings are those of policies that select no workload, of those that name ports of services on which their pods do not listen, and of those whose principals do not name the clients of
// linked trust domains; of each sort beyond a hundred their number.
func PolicyWarnings(unmatched []policy.Unmatched, misported []policy.Misported, pointing []policy.Pointing) []string {
	return slices.Concat(
		first(unmatched, "%d more policies select no workload: mend those that are named, and the others are"),
		first(misported, "%d more policies name ports of services on which their pods do not listen: mend those that are named, and the others are"),
		first(pointing, "%d more policies do not name the clients of the linked trust domain "+policy.PointerDomain+": mend those that are named, and the others are"))
}

// first says those of list that are named, and by more how many others there are.
func first[T fmt.Stringer](list []T, more string) (warnings []string) {
	for _, x := range list[:min(len(list), warningsNamed)] {
		warnings = append(warnings, x.String())
	}
	if n := len(list) - warningsNamed; n > 0 {
		warnings = append(warnings, fmt.Sprintf(more, n))
	}
	return warnings
}

// warningsNamed is how many are.
const warningsNamed = 100

// Row is one share of a service.
type Row struct {
	standing.Row
	Unknown  bool `json:"unknown,omitempty"`  // nobody says anything of it; the numbers mean nothing
	NoPod    bool `json:"noPod,omitempty"`    // by a gateway: it has pods here, and none of them is in the mesh
	Draining bool `json:"draining,omitempty"` // all of its gateways give way
	// Why is why no connection can be made to the service at all, in the words of
	// /explain: the row is of a static listener of a node proxy, or of a service that is
	// used and whose scope leads to none of its pods, and its numbers mean nothing.
	Why string `json:"why,omitempty"`
	// Unreached is why the last of the gateways of another network cannot be reached, as a
	// node proxy has seen itself, or that discovery drains them all or has none: what is said
	// of the pods behind them helps nobody. Empty: not all are out.
	Unreached string `json:"unreached,omitempty"`
	// Failed is what failed of the share of another network, three times and more in a row
	// and held against nobody: the identity of who answers, say. Nil: no such thing.
	Failed *Attempts `json:"failed,omitempty"`
	// Stale is since when nobody vouches for the numbers: they are a last word.
	Stale time.Time `json:"stale,omitzero"`
}

// Heard is how a gateway hears one instance of another.
type Heard struct {
	Network  string    `json:"network"`         // by its certificate
	Gateway  string    `json:"gateway"`         // its name, by the same
	Group    string    `json:"group,omitempty"` // of gateways that reach the same pods
	Instance string    `json:"instance"`        // drawn at its start
	Phase    string    `json:"phase"`           // live, silent, lapsed, ignored or pending
	At       time.Time `json:"at"`              // of its last word
	Key      string    `json:"key,omitempty"`   // fingerprint of the key of its network that has certified it
}

// Key is a key of a network, by the gateway that certifies itself with one of them.
type Key struct {
	Fingerprint string `json:"fingerprint"` // as isthmus network show prints it
	Signs       bool   `json:"signs"`       // this gateway is certified by it
}

// Known are the keys of another network that are believed, by fingerprint.
type Known struct {
	Network      string   `json:"network"`      // whose keys these are
	Fingerprints []string `json:"fingerprints"` // as isthmus network show prints them
}

// Gateway is a gateway that takes no connections, or that nothing is heard of.
type Gateway struct {
	Network string    `json:"network"`          // where it is
	Name    string    `json:"name"`             // in discovery
	Reason  string    `json:"reason,omitempty"` // of the last failure, or what is missing
	Error   string    `json:"error,omitempty"`  // of the last attempt to reach it
	Since   time.Time `json:"since,omitzero"`   // since when it is out
	Until   time.Time `json:"until,omitzero"`   // when it is asked again at the latest
}

// Controller is how it stands with a controller.
type Controller struct {
	Leader  string    `json:"leader"`         // who leads, as far as is known here; empty: nobody is known to
	Leading bool      `json:"leading"`        // that is this process: it alone writes
	Since   time.Time `json:"since,omitzero"` // since when that is known here
	// Attached is how many gateways of its network tell what others export.
	Attached int `json:"attached"`
	Imports  int `json:"imports"` // ServiceImports that there are
	Own      int `json:"own"`     // of these, made by a controller of ours
	// VIPs are the virtual addresses, as the leader knows them; nil at others.
	VIPs *VIPs `json:"vips,omitempty"`
	// Held are the writes that the leader holds back because such were refused, by what is
	// written and where; the others go on.
	Held []HeldWrite `json:"held"`
	// Certificates are the requests that the CA of this process has answered, by result
	// (isthmus_ca_requests_total); nil without a CA.
	Certificates map[string]uint64 `json:"certificates,omitempty"`
	Synced       bool              `json:"synced"`  // all sources were read once
	Sources      []Source          `json:"sources"` // what it follows at the API server, by kind
}

// VIPs are how many services have virtual addresses, one of each family.
type VIPs struct {
	Used int `json:"used"` // also by those that are gone, for a while
	Free int `json:"free"` // for how many more there is room
}

// HeldWrite is a kind of write that is held back.
type HeldWrite struct {
	Write        string    `json:"write"`                  // create, update, status, delete, conditions, taint, or the ledger
	Namespace    string    `json:"namespace,omitempty"`    // empty: wherever it is
	Name         string    `json:"name,omitempty"`         // empty: all of the namespace
	Why          string    `json:"why"`                    // the last error
	MissingRight bool      `json:"missingRight,omitempty"` // it is that this process has no right to it
	Failures     int       `json:"failures"`               // one after another
	Until        time.Time `json:"until"`                  // when one is tried again
}

// Source is what a controller follows at the API server.
type Source struct {
	Kind    string `json:"kind"`             // as the API server calls it
	Objects int    `json:"objects"`          // that are known
	AgeMS   int64  `json:"ageMs"`            // how long ago it was last known to be current; 0 while it is followed
	Unread  bool   `json:"unread,omitempty"` // it was not read yet
	Absent  bool   `json:"absent,omitempty"` // the API server has no such kind
	Error   string `json:"error,omitempty"`  // why it is not followed now
}

// Well reports whether all that s names is known and healthy.
func (s *Status) Well() bool {
	for _, r := range s.Services {
		if r.Why != "" || r.Unreached != "" || r.Failed != nil || r.Unknown || r.Draining || !r.Stale.IsZero() || r.Healthy < r.Ready || len(r.Out) > 0 {
			return false
		}
	}
	for _, h := range s.Heard {
		if h.Quiet() {
			return false
		}
	}
	if c := s.Controller; c != nil && (len(c.Held) > 0 || slices.ContainsFunc(c.Sources, func(x Source) bool { return x.Error != "" })) {
		return false
	}
	return len(s.Gateways) == 0 && len(s.Local) == 0 && len(s.Pending) == 0 && len(s.Problems) == 0 && !s.Detached
}

// Quiet reports whether the last word of h counts although nobody vouches for it.
func (h Heard) Quiet() bool { return h.Phase == "silent" || h.Phase == "lapsed" }
