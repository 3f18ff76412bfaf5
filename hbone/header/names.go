package header

// Header names on CONNECT requests and answers. Peers that do not know the
// isthmus-* ones ignore them.
const (
	NameEndpoint         = "isthmus-endpoint"    // outer 200, inner response: which endpoint was dialed / answered
	NameWeight           = "isthmus-weight"      // outer 200: the weight of that endpoint, decimal
	NameAvoid            = "isthmus-avoid"       // outer request: endpoints this client has seen fail or has already, advisory
	NamePin              = "isthmus-pin"         // outer request: this endpoint or 503
	NameReason           = "isthmus-reason"      // non-200: a Reason
	NameRepeats          = "isthmus-repeats"     // outer and inner request: Reasons after which this client comes again by itself; see Repeats
	NameSlow             = "isthmus-slow"        // inner request: "tell" of a client that wants to hear when connecting takes long; 102: "connect", it does
	NameEnds             = "isthmus-ends"        // inner request: "explicit" of a client that ends each stream itself, see Stream.EndAtEOF
	NameCause            = "isthmus-cause"       // non-200: what happened, for people; see Cause
	NameBaggage          = "baggage"             // who calls, who answered
	NameForwarded        = "forwarded"           // the application's address and the service it asked for
	NameTraceparent      = "traceparent"         // one per application connection, the same on both hops
	NameForwardedNetwork = "x-forwarded-network" // inner CONNECT of a double tunnel: the sender's network
)
