package hbone

import (
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
)

// lifecycle is how a session comes up, retires and ends. The channels are closed
// once and may be waited for without a lock; all else is guarded by the session's
// mu.
type lifecycle struct {
	settingsReceived chan struct{} // closed when the peer's SETTINGS are in
	done             chan struct{} // closed when the session has ended
	readDone         chan struct{} // closed when nobody reads any more
	transportClosed  chan struct{} // closed when the transport is

	changed       sync.Cond   // on mu: streams ended, writer idle, ping answered, session ended
	err           error       // why the session ended
	settingsTimer *time.Timer // ends the session if the peer's SETTINGS do not come
	expiryTimer   *time.Timer // retires the session before a certificate expires
	closeBy       time.Time   // once it has ended: when the transport is closed at the latest

	draining      bool         // no new streams from us
	closeWhenIdle bool         // close when the last stream ends
	idleSince     time.Time    // when the last stream ended
	goAway        *GoAwayError // received
	goAwayID      uint32       // last stream that the peer will serve
	finalID       uint32       // server: last stream that we serve, once drained; wire.MaxStreamID before

	children map[*Session]struct{} // sessions inside streams of this one
}

func (l *lifecycle) init(mu *sync.Mutex, now time.Time) {
	l.settingsReceived, l.done = make(chan struct{}), make(chan struct{})
	l.readDone, l.transportClosed = make(chan struct{}), make(chan struct{})
	l.changed.L = mu
	l.goAwayID, l.finalID = wire.MaxStreamID, wire.MaxStreamID
	l.idleSince = now
}
