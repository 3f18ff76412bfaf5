// Package answer defines the JSON that processes serve at /status and /explain, and the sentences
// that the command line prints from it.
package answer

import (
	"fmt"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/policy"
)

// Status is the state of services in one process: the JSON of /status.
type Status struct {
	Process  string    `json:"process"`  // its kind and name
	Network  string    `json:"network"`  // its own
	Version  string    `json:"version"`  // build version
	Now      time.Time `json:"now"`      // by the clock of the process
	Services []Row     `json:"services"` // services with known health; at a gateway only of its own network
	// Group is the group of a gateway: gateways that reach the same pods; empty if it has none.
	Group string `json:"group,omitempty"`
	// Gateways are the gateways that are out. At a node proxy, gateways of other networks that it
	// ejected, or that send no reports to its own gateways while others there do. Also gateways of
	// its own network without a health stream.
	Gateways []Gateway `json:"gateways"`
	// Local are the ejected ports of the pods on a node proxy's node, by its own observation:
	// workload UID and target port.
	Local []standing.Out `json:"local"`
	// Captured is how many pods of its node a node proxy captures; absent if capture is off.
	Captured *int `json:"captured,omitempty"`
	// Nameless is how many captured pods have no resolver to capture, so that they cannot resolve mesh names.
	Nameless int `json:"nameless,omitempty"`
	// Releasing is whether a node proxy captures nothing and removes its mesh's rules from the pods of its node.
	Releasing bool `json:"releasing,omitempty"`
	// Uncaptured is why pods of its node are not captured; also among the problems.
	Uncaptured []string `json:"uncaptured,omitempty"`
	// Heard are the gateways of all networks from which a gateway receives reports.
	Heard []Heard `json:"heard,omitempty"`
	// Keys are the keys of a gateway's network.
	Keys []Key `json:"keys,omitempty"`
	// Known are the keys of other networks that a gateway trusts.
	Known        []Known `json:"known,omitempty"`
	Rotation     string  `json:"rotation,omitempty"`     // state of the rotation of the network's own key
	RotationNext string  `json:"rotationNext,omitempty"` // next step of the rotation; empty if there is none
	// Pending is what the process waits for before it is ready, as in /healthz/ready.
	Pending []string `json:"pending,omitempty"`
	// Problems are parts of the discovery file that are not in force or not used. At a gateway
	// also services that it cannot export, nodes without reports, and peers whose records it
	// rejects.
	Problems []string `json:"problems,omitempty"`
	// Warnings are policies in force that have no effect as written. They select no workload, name
	// service ports that their pods do not listen on, or have principals without the clients of a
	// linked network. From a gateway, or from a node proxy with a discovery file.
	Warnings []string `json:"warnings,omitempty"`
	// Unrouted is configuration in force with unreachable addresses. Where pods are captured, these
	// are services on other networks without a virtual address, and captured pods without a route
	// for virtual addresses. Also gateways on loopback addresses, where others are not.
	Unrouted []string `json:"unrouted,omitempty"`
	// Unguarded are the pods on a node proxy's node that plain-text connections reach without passing
	// it, although policies deny all or some of these. Each has the policies and the remedy.
	Unguarded []string `json:"unguarded,omitempty"`
	// Detached is whether a node proxy has no health stream to any gateway of its network.
	Detached bool `json:"detached,omitempty"`
	// Lines are a node proxy's connections to gateways of other networks.
	Lines []Line `json:"lines,omitempty"`
	// Controller is the state of a controller.
	Controller *Controller `json:"controller,omitempty"`
}

// PolicyWarnings returns warnings about policies: that select no workload; with service ports that
// their pods do not listen on; with principals without the clients of linked trust domains. Of
// each sort it lists the first hundred and counts the rest.
func PolicyWarnings(unmatched []policy.Unmatched, misported []policy.Misported, pointing []policy.Pointing) []string {
	return slices.Concat(
		first(unmatched, "%d more policies select no workload: fix those listed to see the others"),
		first(misported, "%d more policies name service ports that their pods do not listen on: fix those listed to see the others"),
		first(pointing, "%d more policies do not name the clients of the linked trust domain "+policy.PointerDomain+": fix those listed to see the others"))
}

// first returns the first warningsNamed warnings of list, and more formatted with the number of the others.
func first[T fmt.Stringer](list []T, more string) (warnings []string) {
	for _, x := range list[:min(len(list), warningsNamed)] {
		warnings = append(warnings, x.String())
	}
	if n := len(list) - warningsNamed; n > 0 {
		warnings = append(warnings, fmt.Sprintf(more, n))
	}
	return warnings
}

// warningsNamed is how many warnings of one sort are listed.
const warningsNamed = 100

// Row is one port of a remote service, or of a service of the own network.
type Row struct {
	standing.Row
	Unknown  bool `json:"unknown,omitempty"`  // no report was received; the numbers are meaningless
	NoPod    bool `json:"noPod,omitempty"`    // at a gateway: it has pods here, none of them in the mesh
	Draining bool `json:"draining,omitempty"` // all of its gateways drain
	// Why is why no connection to the service is possible, as in /explain. The row is then for a
	// static listener of a node proxy, or for a service in use with a scope that includes none of
	// its pods. Its numbers are meaningless.
	Why string `json:"why,omitempty"`
	// Unreached is why no gateway of another network is reachable: the reason for the last ejection by
	// the node proxy, or that discovery lists none. The health of the pods behind them is then
	// irrelevant. Empty while not all are out.
	Unreached string `json:"unreached,omitempty"`
	// Failed are three or more consecutive failed connections to another network's service that did
	// not count against its health. An example is an unexpected peer identity. Absent if there are none.
	Failed *Attempts `json:"failed,omitempty"`
	// Stale is since when the numbers are from a stale report; absent while the report is current.
	Stale time.Time `json:"stale,omitzero"`
}

// Heard is the state of one gateway instance, as another gateway receives it.
type Heard struct {
	Network  string    `json:"network"`         // by its certificate
	Gateway  string    `json:"gateway"`         // its name, by its certificate
	Group    string    `json:"group,omitempty"` // of gateways that reach the same pods
	Instance string    `json:"instance"`        // random, drawn at its start
	Phase    string    `json:"phase"`           // live, silent, lapsed, ignored or pending
	At       time.Time `json:"at"`              // when its last report was received
	Key      string    `json:"key,omitempty"`   // fingerprint of the key of its network that certified it
}

// Key is a key of a gateway's own network.
type Key struct {
	Fingerprint string `json:"fingerprint"` // as isthmus network show prints it
	Signs       bool   `json:"signs"`       // the certificate of this gateway is signed with it
}

// Known are the trusted keys of another network, by fingerprint.
type Known struct {
	Network      string   `json:"network"`      // the network of the keys
	Fingerprints []string `json:"fingerprints"` // as isthmus network show prints them
}

// Gateway is a gateway that is out: it accepts no connections, or sends no reports.
type Gateway struct {
	Network string    `json:"network"`          // where it is
	Name    string    `json:"name"`             // in discovery
	Reason  string    `json:"reason,omitempty"` // reason of the last failure, or the missing part
	Error   string    `json:"error,omitempty"`  // error of the last attempt to reach it
	Since   time.Time `json:"since,omitzero"`   // since when it is out
	Until   time.Time `json:"until,omitzero"`   // when it is probed again at the latest
}

// Controller is the state of a controller.
type Controller struct {
	Leader  string    `json:"leader"`         // the leader, as known to this process; empty if unknown
	Leading bool      `json:"leading"`        // this process is the leader; only the leader writes
	Since   time.Time `json:"since,omitzero"` // since when this is known here
	// Attached is how many gateways of its network report the exports of others.
	Attached int `json:"attached"`
	Imports  int `json:"imports"` // number of ServiceImports
	Own      int `json:"own"`     // of these, created by an Isthmus controller
	// VIPs are the virtual addresses; only from the leader.
	VIPs *VIPs `json:"vips,omitempty"`
	// Held are the writes that the leader postpones because the API server refused such writes, by
	// kind and place; other writes go on.
	Held []HeldWrite `json:"held"`
	// Certificates is the number of requests to the CA of this process, by result
	// (isthmus_ca_requests_total); absent without a CA.
	Certificates map[string]uint64 `json:"certificates,omitempty"`
	Synced       bool              `json:"synced"`  // all sources were read at least once
	Sources      []Source          `json:"sources"` // what it watches at the API server, by kind
}

// VIPs counts the services with virtual addresses, one of each IP family.
type VIPs struct {
	Used int `json:"used"` // including deleted services, for a while
	Free int `json:"free"` // number of services that can still get one
}

// HeldWrite is a kind of write that is postponed.
type HeldWrite struct {
	Write        string    `json:"write"`                  // create, update, status, delete, conditions, taint, or the ledger
	Namespace    string    `json:"namespace,omitempty"`    // empty: all namespaces
	Name         string    `json:"name,omitempty"`         // empty: all objects of the namespace
	Why          string    `json:"why"`                    // the last error
	MissingRight bool      `json:"missingRight,omitempty"` // the cause is a missing permission of this process
	Failures     int       `json:"failures"`               // consecutive failures
	Until        time.Time `json:"until"`                  // when the next write is tried
}

// Source is a kind of object that a controller watches at the API server.
type Source struct {
	Kind    string `json:"kind"`             // name at the API server
	Objects int    `json:"objects"`          // number of known objects
	AgeMS   int64  `json:"ageMs"`            // time since it was last known to be current; 0 while it is watched
	Unread  bool   `json:"unread,omitempty"` // not read yet
	Absent  bool   `json:"absent,omitempty"` // the API server does not have this kind
	Error   string `json:"error,omitempty"`  // why it is not watched now
}

// Well reports whether everything in s is known and healthy.
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

// Quiet reports whether the last report of h still counts although it is stale.
func (h Heard) Quiet() bool { return h.Phase == "silent" || h.Phase == "lapsed" }
