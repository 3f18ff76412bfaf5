package nodeproxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// appGoneError is a local application that has reset its connection. It must reach
// the far side as a reset, whatever else is going on: to an application at the far
// end an end in its place says that what came before is complete.
type appGoneError struct{ err error }

func (e *appGoneError) Error() string {
	return "the application has reset its connection: " + e.err.Error()
}
func (e *appGoneError) Unwrap() error { return e.err }

// appGone reports whether err is the application's own doing.
func appGone(err error) bool {
	var gone *appGoneError
	return errors.As(err, &gone)
}

// lookEvery is how often the connection of an application is looked at while its
// tunnel takes long to open: nobody reads it when early data is full, or while a
// session is dialed.
const lookEvery = 250 * time.Millisecond

// onClose calls gone, once, if app's connection is reset before the function that
// it returns is called, which reports whether that was so.
func onClose(app appConn, gone func()) (ended func() bool) {
	l := &look{app: app, gone: gone}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(lookEvery, l.look)
	return l.end
}

// look is the series of looks at one connection.
type look struct {
	app  appConn
	gone func()

	mu     sync.Mutex
	timer  *time.Timer
	ended  bool
	closed bool
}

func (l *look) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended:
	case appClosed(l.app):
		l.closed = true
		l.gone()
	default:
		l.timer.Reset(lookEvery)
	}
}

func (l *look) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.timer.Stop()
	return l.closed
}

// appClosed reports whether app's connection was reset: nobody waits for it any
// more. It takes no error off the socket. A FIN is not that; an application that
// has sent all it has to send may well wait for a response.
func appClosed(app appConn) bool {
	if m, ok := app.(memoryConn); ok {
		return m.StateClose()
	}
	raw, err := app.SyscallConn()
	if err != nil {
		return true
	}
	closed := false
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO)
		closed = err == nil && info.State == unix.BPF_TCP_CLOSE
	})
	return closed || err != nil
}

// whileThere returns a context that ends with ctx, after limit, or when app's
// connection is reset. The function reports whether it was, and must be called.
func whileThere(ctx context.Context, app appConn, limit time.Duration) (context.Context, func() (gone bool)) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	ended := onClose(app, cancel)
	return ctx, func() bool {
		defer cancel()
		return ended()
	}
}
