package answer

import "time"

// Reach is what came of dialing gateways of other networks just now: the JSON of /reach.
type Reach struct {
	Process string  `json:"process"` // who has dialed: its kind and name
	Network string  `json:"network"` // its own
	Tried   []Tried `json:"tried"`   // by network and address
}

// Tried is one address of a gateway of another network. What is below Address is as far as
// the attempt came.
type Tried struct {
	Network  string    `json:"network"`            // that is dialed
	Address  string    `json:"address,omitempty"`  // empty: none is known
	Gateway  string    `json:"gateway,omitempty"`  // who has answered, if it is one that is heard
	Identity string    `json:"identity,omitempty"` // that it has proved
	Expires  time.Time `json:"expires,omitzero"`   // of its certificate
	RTTMS    float64   `json:"rttMs,omitempty"`    // from a CONNECT to the gateway's response
	Error    string    `json:"error,omitempty"`    // empty: the tunnel's CONNECT was answered
	// Connected is whether TCP connected. Then the path was measured.
	Connected bool   `json:"connected,omitempty"`
	Path      *Path  `json:"path,omitempty"`      // nil: no connection could be measured
	PathError string `json:"pathError,omitempty"` // why it was not
	// Transport is that of the gateway for the network, if it is quic or auto (lines.transport, lines.transports). Then UDP is
	// checked where a tunnel opened, at each address for QUIC.
	Transport string `json:"transport,omitempty"`
	UDP       []*UDP `json:"udp,omitempty"`
	UDPError  string `json:"udpError,omitempty"` // why it could not be checked at some address
	// Undialled is whether there was no time to dial it beside the others.
	Undialled bool `json:"undialled,omitempty"`
}
