package header

import "strings"

// Reason is the machine-readable cause of a non-200 response, carried in the
// isthmus-reason header. The list is closed.
type Reason string

const (
	ReasonRefused        Reason = "refused"         // the application refused the TCP connection
	ReasonTimeout        Reason = "timeout"         // the TCP connect to the application timed out
	ReasonReset          Reason = "reset"           // the application reset during the connect
	ReasonUnreachable    Reason = "unreachable"     // the gateway could not reach the pod's address
	ReasonUnknownService Reason = "unknown_service" // no such service here
	ReasonNotExported    Reason = "not_exported"    // the service is not for other networks
	ReasonBadAuthority   Reason = "bad_authority"   // the authority cannot be served in this form
	ReasonNoEndpoint     Reason = "no_endpoint"     // the service has no usable endpoint
	ReasonPinnedGone     Reason = "pinned_gone"     // the endpoint of isthmus-pin is not usable
	ReasonDenied         Reason = "denied"          // policy
	ReasonDraining       Reason = "draining"        // this hop is going away
	ReasonOverload       Reason = "overload"        // this hop is at a limit
	ReasonNotLocal       Reason = "not_local"       // no such local workload, or the address does not match
	ReasonBadRequest     Reason = "bad_request"     // not a CONNECT that we understand
	ReasonWithdrawn      Reason = "withdrawn"       // the client has taken its CONNECT back, and the application has got nothing of it
)

// Reasons is the closed list, in documentation order.
var Reasons = []Reason{
	ReasonRefused, ReasonTimeout, ReasonReset, ReasonUnreachable, ReasonUnknownService, ReasonNotExported,
	ReasonBadAuthority, ReasonNoEndpoint, ReasonPinnedGone, ReasonDenied, ReasonDraining, ReasonOverload,
	ReasonNotLocal, ReasonBadRequest, ReasonWithdrawn,
}

// Repeats reports whether a client with these headers comes again by itself when it is
// refused for r. One that does not say so, as a stock client, does not: its application
// loses the connection.
func Repeats(value string, r Reason) bool {
	for item := range strings.SplitSeq(value, ",") {
		if Reason(strings.TrimSpace(item)) == r {
			return true
		}
	}
	return false
}

// Known reports whether r is on the closed list.
func (r Reason) Known() bool {
	for _, k := range Reasons {
		if r == k {
			return true
		}
	}
	return false
}
