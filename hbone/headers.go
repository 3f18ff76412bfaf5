package hbone

import "github.com/isthmus-mesh/isthmus/hbone/header"

// Header holds header fields by lower-case name; repeated fields are joined
// with a comma. The zero value is empty and ready to use.
type Header map[string]string

// Get returns the value of name (lower case), empty if absent.
func (h Header) Get(name string) string { return h[name] }

// Set replaces the value of name (lower case), allocating the map if needed.
func (h *Header) Set(name, value string) {
	if *h == nil {
		*h = make(Header, 4)
	}
	(*h)[name] = value
}

// Request is a CONNECT. Authority is host:port in any of the forms that the
// receiver understands; Header must not hold pseudo-header fields.
type Request struct {
	Authority string
	Header    Header
	// Replayable says that what is written before the response belongs to no
	// application, such as the hello of an inner handshake: it may be lost or
	// be sent again, so that a session that dies meanwhile leaves ErrRetryable.
	Replayable bool
}

// plainOK stands for a 200 whose headers are in other hands.
var plainOK = &Response{Status: 200}

// Response is the response to a CONNECT.
type Response struct {
	Status int
	Header Header
}

// Endpoint is the endpoint that the response names, zero when it names none.
func (r *Response) Endpoint() uint64 { return header.ParseEndpoint(r.Header.Get(header.NameEndpoint)) }

// Weight is the weight of that endpoint, one when the response does not say.
func (r *Response) Weight() uint32 { return header.ParseWeight(r.Header.Get(header.NameWeight)) }
