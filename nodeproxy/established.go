package nodeproxy

import (
	"context"
	"net"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// established is a connection whose both ends are there, and all that is kept of
// it: it may be idle for days. It is relayed by a goroutine of its own, whose
// stack has not grown by what opening it took.
type established struct {
	p      *Proxy
	conn   net.Conn
	stream *hbone.Stream
	access access
	early  *earlyData // what was read from conn and is not sent yet; usually nil
	sent   int64      // bytes that were sent into the tunnel before
	ended  func()     // closes the books, may be nil
	permit *permit    // of an inbound one
	bulk   *bulkWatch // of one through a gateway; nil for others
}

// relay moves bytes until the end.
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
