package route

import "strconv"

// Kind says why there is no route, for callers that branch.
type Kind uint8

const (
	_              Kind = iota
	UnknownService      // no service has this name
	UnknownPort         // the service does not have this port
	NoEndpoint          // the service has no ready workload that may be used
	NotExported         // the service may not be reached from other networks, or not here
	NoRoute             // nothing leads there: an unknown address, or a network without gateways
	BadAuthority        // not host:port, or an address where a hostname is needed
	WrongAddress        // the authority names another pod's address
	NotMember           // the local workload does not serve this service
	IllegalPort         // a port of the node proxy itself
	NotLocal            // the workload is not in discovery
)

var kindNames = [...]string{
	UnknownService: "unknown service", UnknownPort: "unknown port", NoEndpoint: "no endpoint", NotExported: "not exported",
	NoRoute: "no route", BadAuthority: "bad authority", WrongAddress: "wrong address", NotMember: "not a member",
	IllegalPort: "illegal port", NotLocal: "not local",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// Error is the refusal of one flow or authority.
type Error struct {
	Kind    Kind
	Subject string // what was asked for, as the caller wrote it
	Detail  string // the cause, and the remedy if there is one
}

func (e *Error) Error() string {
	return "route to " + strconv.Quote(e.Subject) + ": " + e.Kind.String() + ": " + e.Detail
}

// Status is the HTTP status that a CONNECT is refused with, as ztunnel's are:
// 400 for an authority that cannot be right here, else 503; and 403 for what is
// here and not for this peer, which ztunnel does not know.
func (e *Error) Status() int {
	switch e.Kind {
	case BadAuthority, WrongAddress:
		return 400
	case NotExported:
		return 403
	}
	return 503
}
