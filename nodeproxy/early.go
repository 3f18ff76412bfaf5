package nodeproxy

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/memory"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// earlyMax bounds what is read from an application before a far application has
// accepted: it fits into the window of a stream whose peer has not answered yet.
const earlyMax = 16 << 10

// earlyData is the connection of a local application while no far application has
// accepted it. What the application sends meanwhile goes to the far side at once,
// as far as the windows allow, and is held so that it can be replayed to another
// endpoint if the far side refuses. Owned by the goroutine of its call; only wake
// is called by others.
type earlyData struct {
	app  appConn
	raw  syscall.RawConn
	held []byte // what the application has sent so far

	memory *memory.Budget // of the process; may be nil
	owner  string         // identity that held is charged to
	use    *memory.Use    // of held

	sent int   // how much of held is written to the current stream
	full bool  // nothing more is read: held is full, or the application has ended
	err  error // the application's connection failed, an *appGoneError; read once, and the socket may not tell it again

	hears hearsSlow       // of the current attempt; nil: it waits for the response, however long that takes
	asked mesh.EndpointID // by the current attempt; zero: that is not known

	mu      sync.Mutex
	waiting bool // in a wait that wake ends
}

var earlyBufs = sync.Pool{New: func() any { b := make([]byte, 0, earlyMax); return &b }}

// longPast wakes whoever reads with a deadline.
var longPast = time.Unix(1, 0)

// newEarlyData starts with what app has sent already, if anything.
func newEarlyData(app appConn, already []byte, budget *memory.Budget) *earlyData {
	raw, err := app.SyscallConn()
	e := &earlyData{app: app, raw: raw, full: err != nil, memory: budget}
	if len(already) > 0 {
		e.held = append(e.buffer(), already...)
	}
	return e
}

// rest is what the application has sent and the current stream has not got. It is
// valid until release.
func (e *earlyData) rest() []byte { return e.held[e.sent:] }

// buffer takes an empty buffer from the pool, which release gives back.
func (e *earlyData) buffer() []byte {
	e.use = e.memory.Open(e.owner, memory.Other, nil)
	e.use.Add(earlyMax)
	return *earlyBufs.Get().(*[]byte)
}

// release gives back the buffer of what was held.
func (e *earlyData) release() {
	e.use.Close()
	e.use = nil
	if cap(e.held) == earlyMax {
		held := e.held[:0]
		earlyBufs.Put(&held)
	}
	e.held, e.sent = nil, 0
}

// connect asks for a stream on s and waits for the response. With early, and on a
// lively session, it sends what the application sends meanwhile. An error that is
// neither a response nor hbone.ErrRetryable then leaves open, if e.sent is not
// zero, what became of that.
func (e *earlyData) connect(ctx context.Context, s *hbone.Session, req *hbone.Request, early bool) (*hbone.Stream, *hbone.Response, error) {
	e.sent = 0
	early = early && s.Lively() && !e.memory.Tight()
	if len(e.held) == 0 && !e.full && !e.memory.Tight() {
		e.read(false) // what is there already shares a record with the request
	}
	if e.err != nil {
		return nil, nil, e.err
	}
	st, err := s.Start(req)
	if err != nil {
		return nil, nil, err
	}
	e.follow(ctx, st, early)
	if e.err != nil {
		st.Reset(http2.ErrCodeConnect)
		return nil, nil, e.err
	}
	if e.hears != nil {
		if r := st.AwaitInterim(ctx); r != nil && e.hears.slow(r, e.asked) {
			st.Withdraw()
		}
	}
	response, err := st.AwaitResponse(ctx)
	return st, response, err
}

// follow reads what the application sends until the response is there or ctx ends,
// and sends it if early is set. It never waits for a window: what does not fit is
// left to the relay.
func (e *earlyData) follow(ctx context.Context, st *hbone.Stream, early bool) {
	defer e.listen(ctx, st)()
	for {
		if early && e.sent < len(e.held) {
			n, err := st.TryWrite(e.rest())
			if e.sent += n; err != nil {
				return
			}
			early = e.sent == len(e.held)
		}
		if e.full || e.memory.Tight() || st.Responded() || ctx.Err() != nil || !e.read(true) || e.err != nil {
			return
		}
	}
}

// listen has events on the stream, and the end of ctx, wake waits on the
// application until the function it returns is called.
func (e *earlyData) listen(ctx context.Context, st *hbone.Stream) func() {
	e.mu.Lock()
	e.waiting = true
	e.mu.Unlock()
	stop := context.AfterFunc(ctx, e.wake)
	st.Watch(e.wake)
	return func() {
		st.Watch(nil)
		stop()
		e.mu.Lock()
		e.waiting = false
		e.app.SetReadDeadline(time.Time{})
		e.mu.Unlock()
	}
}

// wake ends a wait on the application, now or the next one.
func (e *earlyData) wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting {
		e.app.SetReadDeadline(longPast)
	}
}

// read takes what the application has sent, waiting for it if wait is set, and
// reports whether there was anything, an end or a failure (e.err) included. An end
// stays unread for the relay. Nothing is taken from the pool before there is
// something to hold.
func (e *earlyData) read(wait bool) bool {
	n, err := 0, error(nil)
	rerr := e.raw.Read(func(fd uintptr) bool {
		held := e.held
		if held == nil {
			held = e.buffer()
		}
		n, err = tryRead(e.app, fd, held[len(held):cap(held)])
		e.held = held[:len(held)+max(n, 0)]
		if len(e.held) == 0 {
			e.release()
		}
		return !wait || err != syscall.EAGAIN
	})
	if rerr != nil || err == syscall.EAGAIN {
		return false
	}
	if err != nil {
		e.err = &appGoneError{fmt.Errorf("read from %v: %w", e.app.RemoteAddr(), err)}
	}
	e.full = err != nil || n <= 0 || len(e.held) == earlyMax
	return true
}

// firstByte waits, on a stream that was accepted, until one side has sent
// something. While nothing has crossed, a tunnel that breaks may be replaced by
// another one: the error is not nil. From nil on nothing may be repeated.
func (e *earlyData) firstByte(ctx context.Context, st *hbone.Stream) error {
	if len(e.held) > 0 || e.full || e.memory.Tight() {
		if e.sent > 0 {
			return nil
		}
		_, err := st.Ready()
		return err
	}
	defer e.listen(ctx, st)()
	for {
		e.app.SetReadDeadline(time.Time{}) // before the look: a wake after it counts
		if ready, err := st.Ready(); ready || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil // this process stops
		}
		if e.read(true) {
			return e.err // nil: the application has sent something, or ended
		}
	}
}
