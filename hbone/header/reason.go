package header

import "strings"

// Reason is the machine-readable cause of a non-200 response, carried in the
// isthmus-reason header. The list is closed.
type Reason string

const (
	ReasonRefused        Reason = "refused"         // the application refused the TCP connection
	ReasonTimeout        Reason = "timeout"         // the TCP connect to the application timed out
	ReasonReset          Reason = "reset"           // the application reset the connection during the connect
	ReasonUnreachable    Reason = "unreachable"     // the gateway could not reach the pod's address
	ReasonUnknownService Reason = "unknown_service" // the service does not exist here
	ReasonNotExported    Reason = "not_exported"    // the service is not exported to other networks
	ReasonBadAuthority   Reason = "bad_authority"   // the CONNECT authority does not have a form that is served here
	ReasonNoEndpoint     Reason = "no_endpoint"     // the service has no usable endpoint
	ReasonPinnedGone     Reason = "pinned_gone"     // the endpoint in isthmus-pin is not usable
	ReasonDenied         Reason = "denied"          // a policy denies the connection
	ReasonDraining       Reason = "draining"        // this hop is draining
	ReasonOverload       Reason = "overload"        // this hop has reached a limit
	ReasonNotLocal       Reason = "not_local"       // the local workload does not exist, or the address does not match
	ReasonBadRequest     Reason = "bad_request"     // the CONNECT is not understood
	ReasonWithdrawn      Reason = "withdrawn"       // the client withdrew its CONNECT, and the application received nothing
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
