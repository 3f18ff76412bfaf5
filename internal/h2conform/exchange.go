package h2conform

import (
	"fmt"
	"net"
	"testing"

	"golang.org/x/net/http2"
)

// Exchange is one row being run: a session of its own, with a sibling stream
// that works and a victim in the row's state.
type Exchange struct {
	*Peer
	ID uint32 // of the victim

	t       testing.TB
	target  Target
	open    func() net.Conn
	next    uint32 // client: next stream identifier
	newest  uint32 // server: the newest stream of which the CONNECT was taken
	sibling stream
	apps    []net.Conn
}

// begin brings the session and the victim into the state.
func begin(t testing.TB, target Target, state State) *Exchange {
	x := &Exchange{t: t, target: target, next: 1}
	if target.Server != nil {
		x.Peer = newPeer(t, target.Server.Dial(t), true)
	} else {
		var conn net.Conn
		conn, x.open = target.Client.Start(t)
		x.Peer = newPeer(t, conn, false)
	}
	if x.client && state != Connected {
		x.conn.Write([]byte(http2.ClientPreface))
	}
	if state == Connected || state == Prefaced {
		x.unresponsive = true
		go x.read()
		return x
	}
	x.Write(func(fr *http2.Framer) { fr.WriteSettings() })
	go x.read()
	x.sibling = x.stream()
	x.must(x.sibling.echo("the sibling"))
	switch state {
	case Fresh:
		if x.client {
			x.ID = x.newID()
		} else {
			x.ID = x.heldStream()
		}
		return x
	case Quiet:
		x.ID = x.sibling.id
		return x
	}
	victim := x.stream()
	x.ID = victim.id
	x.must(victim.echo(keepOpen))
	switch state {
	case HalfClosed:
		x.Write(func(fr *http2.Framer) { fr.WriteData(x.ID, true, nil) })
	case Reset:
		x.Write(func(fr *http2.Framer) { fr.WriteRSTStream(x.ID, http2.ErrCodeCancel) })
	}
	return x
}

func (x *Exchange) must(err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatalf("%v; the endpoint sent %s", err, x.since(0))
	}
}

func (x *Exchange) newID() uint32 {
	id := x.next
	x.next += 2
	return id
}

// stream opens a stream to an echo, or from an application to one.
func (x *Exchange) stream() stream {
	x.t.Helper()
	from := x.mark()
	if x.client {
		id := x.newID()
		x.Headers(id, false, x.Head()...)
		f, ok := x.await(from, func(f Frame) bool { return f.decides(id) })
		if !ok || f.field(":status") != "200" {
			x.must(fmt.Errorf("CONNECT on stream %d was not accepted", id))
		}
		return stream{id: id, echo: func(text string) error { return x.Peer.echo(id, text) }}
	}
	from = 0      // the first CONNECT may have come with the preface
	for range 4 { // it may be asked to go on another session, and is sent away there
		app := x.open()
		x.apps = append(x.apps, app)
		f, ok := x.awaitFor(patience/4, from, func(f Frame) bool { return f.Type == http2.FrameHeaders && f.StreamID > x.newest })
		if ok {
			x.newest = f.StreamID
			return stream{id: f.StreamID, echo: appEcho(app), app: app}
		}
		app.Close()
		from = x.mark()
	}
	x.must(fmt.Errorf("no CONNECT came on this session"))
	return stream{}
}

// heldStream is a CONNECT of the endpoint that is not answered yet.
func (x *Exchange) heldStream() uint32 {
	x.t.Helper()
	x.mu.Lock()
	x.hold = true
	x.mu.Unlock()
	return x.stream().id
}

// Head is the header list of a proper CONNECT, or of a proper answer.
func (x *Exchange) Head() []string {
	if x.client {
		return []string{":method", "CONNECT", ":authority", x.target.Server.Authority}
	}
	return []string{":status", "200"}
}

// SendHead sends it on the victim with more fields.
func (x *Exchange) SendHead(more ...string) {
	x.Headers(x.ID, false, append(x.Head(), more...)...)
}

// Idle is a stream that was never opened, of the side that opens streams.
func (x *Exchange) Idle() uint32 { return 0x10001 }

// end closes everything.
func (x *Exchange) end() {
	for _, a := range x.apps {
		a.Close()
	}
	x.conn.Close()
}
