package nodeproxy

import (
	"context"
	"sync"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// heldMax bounds what an application may say before a far application has
// accepted: it fits into the window of a stream whose peer has not spoken yet.
const heldMax = 16 << 10

// opening is the connection of a local application while no far application has
// accepted it. What it says meanwhile goes to the far side at once, and is held
// so that it can be said again elsewhere if the far side turns it down. Owned by
// the goroutine of its call; only wake is called by others.
type opening struct {
	app  appConn
	raw  syscall.RawConn
	held []byte // what the application has said so far
	mute bool   // it will say no more before it is answered: held is full, or it has ended

	mu     sync.Mutex
	asleep bool // in a wait that wake ends
}

var heldBufs = sync.Pool{New: func() any { b := make([]byte, 0, heldMax); return &b }}

// longPast wakes whoever reads with a deadline.
var longPast = time.Unix(1, 0)

// newOpening begins with what app has said already, if anything.
func newOpening(app appConn, said []byte) *opening {
	raw, err := app.SyscallConn()
	o := &opening{app: app, raw: raw, mute: err != nil}
	if len(said) > 0 {
		o.held = append(*heldBufs.Get().(*[]byte), said...)
	}
	return o
}

// release gives the memory of what was held back.
func (o *opening) release() {
	if cap(o.held) == heldMax {
		held := o.held[:0]
		heldBufs.Put(&held)
	}
	o.held = nil
}

// connect asks for a stream on s and waits for the answer. On a lively session
// it does not wait to pass on what the application says. said reports that the
// far side may have got some of that: an error that is neither an answer nor
// hbone.ErrRetryable then leaves open what became of it.
func (o *opening) connect(ctx context.Context, s *hbone.Session, req *hbone.Request, early bool) (st *hbone.Stream, answer *hbone.Response, said bool, err error) {
	early = early && s.Lively()
	if early && len(o.held) == 0 && !o.mute {
		o.take(false) // what is there already shares a record with the request
	}
	if st, err = s.Start(req); err != nil {
		return nil, nil, false, err
	}
	if early {
		said = o.sayEarly(ctx, st)
	}
	answer, err = st.Answer(ctx)
	if err == nil && !said && len(o.held) > 0 {
		_, err = st.Write(o.held)
		said = true
	}
	return st, answer, said, err
}

// sayEarly passes on what the application has said and says, until the answer
// is there or ctx ends; it reports whether that was anything.
func (o *opening) sayEarly(ctx context.Context, st *hbone.Stream) (said bool) {
	defer o.listen(ctx, st)()
	sent := 0
	for {
		if sent < len(o.held) {
			said = true
			n, err := st.Write(o.held[sent:])
			if sent += n; err != nil {
				return said
			}
		}
		if o.mute || st.Answered() || ctx.Err() != nil || !o.hear() {
			return said
		}
	}
}

// listen has events on the stream, and the end of ctx, wake waits on the
// application until the function it returns is called.
func (o *opening) listen(ctx context.Context, st *hbone.Stream) func() {
	o.mu.Lock()
	o.asleep = true
	o.mu.Unlock()
	stop := context.AfterFunc(ctx, o.wake)
	st.Watch(o.wake)
	return func() {
		st.Watch(nil)
		stop()
		o.mu.Lock()
		o.asleep = false
		o.app.SetReadDeadline(time.Time{})
		o.mu.Unlock()
	}
}

// wake ends a wait on the application, now or the next one.
func (o *opening) wake() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.asleep {
		o.app.SetReadDeadline(longPast)
	}
}

// hear waits for the application's next bytes and holds them; false if it was
// woken. An end stays unread for whoever relays.
func (o *opening) hear() bool { return o.take(true) }

// take reads what the application has said, waiting for it if wait is set, and
// reports whether there was anything, an end included. Nothing is taken from the
// pool before there is something to hold.
func (o *opening) take(wait bool) bool {
	n, err := 0, error(nil)
	werr := o.raw.Read(func(fd uintptr) bool {
		held := o.held
		if held == nil {
			held = *heldBufs.Get().(*[]byte)
		}
		n, err = tryRead(o.app, fd, held[len(held):cap(held)])
		o.held = held[:len(held)+max(n, 0)]
		if len(o.held) == 0 {
			o.release()
		}
		return !wait || err != syscall.EAGAIN
	})
	if werr != nil || err == syscall.EAGAIN {
		return false
	}
	o.mute = err != nil || n <= 0 || len(o.held) == heldMax
	return true
}

// firstByte waits, on a stream that was answered, until one side has spoken, and
// passes on what ours says. While nothing has crossed, a tunnel that breaks may be
// replaced by another one: err is not nil. From nil on nothing may be repeated.
func (o *opening) firstByte(ctx context.Context, st *hbone.Stream) error {
	if len(o.held) > 0 || o.mute {
		return nil // passed on before
	}
	err := o.awaitFirst(ctx, st)
	if err != nil || len(o.held) == 0 {
		return err
	}
	st.Write(o.held) // if it fails some of it may have gone out: the relay ends the connection
	return nil
}

func (o *opening) awaitFirst(ctx context.Context, st *hbone.Stream) error {
	defer o.listen(ctx, st)()
	for {
		o.app.SetReadDeadline(time.Time{}) // before the look: a wake after it counts
		if ready, err := st.Ready(); ready || err != nil {
			return err
		}
		if ctx.Err() != nil || o.hear() {
			return nil // our application spoke or left, or this process stops
		}
	}
}
