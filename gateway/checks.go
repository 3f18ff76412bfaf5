package gateway

import (
	"context"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/pathcheck"
)

// screenCheck serves a CONNECT of a path check, within the limits of its client. It is neither logged nor counted as a
// tunnel: a check has several hundred.
func (g *Gateway) screenCheck(in *hbone.Incoming, client admission.Client, session *admission.Session) hbone.Handler {
	admitted, err := session.Stream(time.Now(), in.Unread, func() { in.Reset(http2.ErrCodeEnhanceYourCalm) })
	if err != nil {
		in.Refuse(g.clients.Refused(err, client), hbone.Header{header.NameReason: string(header.ReasonOverload)})
		return nil
	}
	if in.Authority == header.CheckAuthority {
		pathcheck.Respond(in)
		admitted.Release()
		return nil
	}
	return func(context.Context, *hbone.Incoming) {
		defer admitted.Release()
		g.sink(in)
	}
}

// sink serves a measurement of throughput of another gateway. It serves one at a time: two would measure each other.
func (g *Gateway) sink(in *hbone.Incoming) {
	if !g.isGateway(in.Session.Peer().ID) {
		in.Refuse(403, hbone.Header{header.NameReason: string(header.ReasonNotExported), header.NameCause: header.Cause("only gateways measure throughput")})
		return
	}
	if !g.sinking.TryLock() {
		in.Refuse(503, hbone.Header{header.NameReason: string(header.ReasonOverload), header.NameCause: header.Cause("another measurement of throughput is running: try again in a few seconds")})
		return
	}
	defer g.sinking.Unlock()
	pathcheck.Sink(in)
}
