// Package answer has the forms of what processes answer to operators at /status and
// /explain, and the sentences that the command line makes of them.
package answer

import (
	"time"

	"github.com/isthmus-mesh/isthmus/health/standing"
)

// Status is what one process believes of services: the JSON of /status.
type Status struct {
	Process  string    `json:"process"` // its kind and name
	Network  string    `json:"network"`
	Now      time.Time `json:"now"`
	Services []Row     `json:"services"`
	// Gateways are those of other networks that are out, by a node proxy's own evidence.
	Gateways []Gateway `json:"gateways"`
	// Local are the ports of pods beside a node proxy that are out, as it has
	// witnessed itself: workload UID and target port.
	Local []standing.Out `json:"local"`
	// Problems are what a gateway would tell others of its services and cannot.
	Problems []string `json:"problems,omitempty"`
	// Detached says that no gateway of its network tells a node proxy what is known.
	Detached bool `json:"detached,omitempty"`
}

// Row is one share of a service.
type Row struct {
	standing.Row
	Unknown  bool `json:"unknown,omitempty"`  // nobody says anything of it; the numbers mean nothing
	Draining bool `json:"draining,omitempty"` // all of its gateways give way
}

// Gateway is a gateway that takes no connections.
type Gateway struct {
	Network string    `json:"network"`
	Name    string    `json:"name"`
	Reason  string    `json:"reason,omitempty"`
	Since   time.Time `json:"since,omitzero"`
}

// Well reports whether all that s names is known and healthy.
func (s *Status) Well() bool {
	for _, r := range s.Services {
		if r.Unknown || r.Draining || r.Healthy < r.Ready || len(r.Out) > 0 {
			return false
		}
	}
	return len(s.Gateways) == 0 && len(s.Local) == 0 && len(s.Problems) == 0 && !s.Detached
}
