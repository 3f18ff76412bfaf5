package nodeproxy

import (
	"context"
	"net"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// established is a connection with an open tunnel. It holds only what relaying needs, as a connection
// may be idle for days. A new goroutine relays it, so that the stack does not keep the size that
// opening the connection needed.
type established struct {
	p      *Proxy
	conn   net.Conn
	stream *hbone.Stream
	access access
	early  *earlyData // read from conn and not sent yet; usually nil
	sent   int64      // bytes sent into the tunnel before the relay
	ended  func()     // called once when the relay is done; may be nil
	permit *permit    // of an inbound connection; nil for others
	bulk   *bulkWatch // of a connection through a gateway; nil for others
}

// relay copies bytes in both directions until the connection closes.
func (e *established) relay(ctx context.Context) {
	o := hbone.RelayOptions{}
	if e.early != nil {
		o.First = e.early.rest()
	}
	if e.bulk != nil {
		o = e.bulk.watch(o)
	}
	r := hbone.RelayWith(ctx, e.stream, e.conn, o)
	if e.early != nil {
		e.early.release()
	}
	a := &e.access
	a.sent, a.received, a.err = r.ToStream+e.sent, r.ToConn, r.Err
	a.result, a.opened = ending(e.p.data, a.direction, e.stream, r.Err), true
	if e.permit != nil {
		if revoked := e.permit.end(); revoked != nil {
			a.denied(*revoked)
		}
	}
	if e.ended != nil {
		e.ended()
	}
	e.p.finish(a)
}
