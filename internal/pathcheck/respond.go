package pathcheck

import (
	"io"
	"net/http"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
)

// Respond refuses a CONNECT to [header.CheckAuthority]. The response repeats as many bytes as the request has for that, so
// that full-size packets travel in both directions, and reports what this end of the connection lost.
func Respond(in *hbone.Incoming) {
	h := hbone.Header{header.NameReason: string(header.ReasonUnknownService)}
	if echo := in.Header.Get(header.NameEcho); echo != "" && len(echo) <= header.MaxEcho {
		h[header.NameEcho] = echo
	}
	if i, ok := tcp.InfoOf(in.Session.Conn()); ok {
		h[header.NameSent] = header.Sent{Segments: i.Segments, Lost: i.Lost(), MaxSegment: i.MaxSegment}.String()
	}
	in.Refuse(http.StatusNotFound, h)
}

// sinkTime bounds one Sink.
const sinkTime = flowTime + time.Second

// Sink accepts a CONNECT to [header.SinkAuthority] and discards what is received, for three seconds at most.
func Sink(in *hbone.Incoming) {
	stream, err := in.Accept(nil)
	if err != nil {
		return
	}
	stream.SetReadDeadline(time.Now().Add(sinkTime))
	io.Copy(io.Discard, stream)
	stream.Reset(http2.ErrCodeNo)
}
