package hbone

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/isthmus-mesh/isthmus/internal/memory"
)

const (
	tlsHeaderLen = 5
	tlsOverhead  = 17 // content type and tag of a TLS 1.3 record

	// A TCP connection starts with room for one record, so that ten thousand
	// handshakes that never end cost little, and gets the large buffer with the
	// first read that fills it.
	firstReadBuffer = 20 << 10
	tcpReadBuffer   = 256 << 10

	maxRecord      = tlsHeaderLen + 1<<16 - 1 // as its header could say
	corkBufferSize = 4 * (16<<10 + tlsHeaderLen + tlsOverhead + 256)
)

// recordConn sits below crypto/tls. It reads ciphertext ahead in large pieces
// but hands out at most one record at a time, so that it always knows whether a
// complete record is at hand; and it can hold writes back to send them as one.
type recordConn struct {
	net.Conn
	st *Stream // Conn, if it is one: its queue is the input, its frames are the output

	// Reading: one goroutine.
	in     input
	left   int   // bytes of the current record not handed out
	err    error // of the connection, after in is used up
	noWait bool  // do not wait for the connection
	cut    bool  // crypto/tls has seen the end of the connection, and so no closing alert before it

	wmu     sync.Mutex // taken by the writer, and by crypto/tls for alerts
	held    []byte     // written and held back; nil while not corked
	started bool       // some of what was written since cork has been sent
	frame   *frameBuf  // held is its payload, if Conn is a stream
	buf     *[]byte    // held's origin otherwise
}

// input is ciphertext that has arrived and was not handed to crypto/tls.
type input interface {
	have() int
	// length returns what the record header says that is next; false without a whole
	// one, which may be so behind have too: who closes a stream takes what it had.
	length() (int, bool)
	take(p []byte) (int, error)
	// fill waits until there is more than have, which its caller has looked at:
	// what came since then counts.
	fill(have int) error
}

var corkBufs = sync.Pool{New: func() any { b := make([]byte, 0, corkBufferSize); return &b }}

func newRecordConn(raw net.Conn) *recordConn {
	c := &recordConn{Conn: raw}
	if st, ok := raw.(*Stream); ok {
		c.st, c.in = st, streamInput{st}
	} else {
		c.in = newReadAhead(raw)
	}
	return c
}

// errNoRecord is a temporary net.Error: crypto/tls does not remember those.
type errNoRecord struct{}

func (errNoRecord) Error() string   { return "hbone: no complete record at hand" }
func (errNoRecord) Timeout() bool   { return true }
func (errNoRecord) Temporary() bool { return true }

// Read implements net.Conn for crypto/tls.
func (c *recordConn) Read(p []byte) (int, error) {
	for have := c.in.have(); have == 0 || !c.begun(); have = c.in.have() {
		if err := c.fill(have); err != nil {
			c.cut = c.cut || errors.Is(err, io.EOF)
			return 0, err
		}
	}
	n, err := c.in.take(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// begun reports that it is known how much of the current record is to come.
func (c *recordConn) begun() bool {
	if c.left == 0 {
		if n, ok := c.in.length(); ok {
			c.left = tlsHeaderLen + n
		}
	}
	return c.left > 0
}

// next returns an upper bound of the plaintext in the next record, if that is
// completely at hand.
func (c *recordConn) next() (size int, ok bool) {
	have := c.in.have()
	if c.left != 0 {
		return 0, false
	}
	size, ok = c.in.length()
	return size - tlsOverhead, ok && have >= tlsHeaderLen+size
}

// await blocks until a complete record is at hand, or until Read has an error to
// return. A stream holds no buffer meanwhile.
func (c *recordConn) await() {
	for {
		have := c.in.have()
		if _, ok := c.next(); ok || c.err != nil {
			return
		}
		if err := c.fill(have); err != nil {
			c.keep(err)
			return
		}
	}
}

// keep remembers err for the next Read, unless it will pass.
func (c *recordConn) keep(err error) {
	var ne net.Error
	if !errors.As(err, &ne) || !ne.Timeout() {
		c.err = err
	}
}

func (c *recordConn) fill(have int) error {
	switch {
	case c.noWait:
		return errNoRecord{}
	case c.err != nil:
		return c.err
	}
	return c.in.fill(have)
}

// streamInput is what lies in the queue of a stream.
type streamInput struct{ st *Stream }

func (i streamInput) have() int                  { return i.st.Buffered() }
func (i streamInput) take(p []byte) (int, error) { return i.st.Read(p) }

func (i streamInput) length() (int, bool) {
	i.st.recv.mu.Lock()
	defer i.st.recv.mu.Unlock()
	if i.st.recv.queue.n < tlsHeaderLen {
		return 0, false
	}
	var h [tlsHeaderLen]byte
	i.st.recv.queue.copy(h[:])
	return recordLength(h[:]), true
}

func (i streamInput) fill(have int) error {
	return i.st.recv.wait(have + 1)
}

// recordLength is what follows the header h of a TLS record.
func recordLength(h []byte) int { return int(binary.BigEndian.Uint16(h[3:])) }

// readAhead is a connection's input, read in large pieces. With a socket there is no
// buffer while nothing has arrived.
type readAhead struct {
	c      net.Conn
	sock   socket  // without raw: none
	buf    []byte  // nil: none
	box    *[]byte // buf, as the pool has it
	class  int     // of buf
	next   int     // class of the next buffer
	r, w   int
	err    error // came with bytes
	use    *memory.Use
	tryN   int // results of attempt
	tryErr error
	try    func(fd uintptr) bool
}

// readSizes are the sizes of buffers.
var readSizes = [...]int{firstReadBuffer, tcpReadBuffer}

var readPools [len(readSizes)]sync.Pool

func newReadAhead(c net.Conn) *readAhead {
	a := &readAhead{c: c}
	if s, ok := socketOf(c); ok {
		a.sock, a.try = s, a.attempt
	}
	return a
}

// charge has the connection's buffers charged to use.
func (c *recordConn) charge(use *memory.Use) {
	if a, ok := c.in.(*readAhead); ok {
		a.use = use
		use.Add(len(a.buf))
	}
}

// get takes a buffer of class, or a smaller one if there is little memory and it need
// not be so large.
func (a *readAhead) get(class int, must bool) {
	if class == 0 || must || !a.use.TryReserve(readSizes[class]) {
		if !must {
			class = 0
		}
		a.use.Add(readSizes[class])
	}
	box, ok := readPools[class].Get().(*[]byte)
	if !ok {
		b := make([]byte, readSizes[class])
		box = &b
	}
	a.buf, a.box, a.class = *box, box, class
}

// drop gives the buffer back.
func (a *readAhead) drop() {
	if a.buf == nil {
		return
	}
	a.use.Release(len(a.buf))
	readPools[a.class].Put(a.box)
	a.buf, a.box = nil, nil
}

func (a *readAhead) have() int { return a.w - a.r }

func (a *readAhead) length() (int, bool) {
	if a.have() < tlsHeaderLen {
		return 0, false
	}
	return recordLength(a.buf[a.r:]), true
}

func (a *readAhead) take(p []byte) (int, error) {
	n := copy(p, a.buf[a.r:a.w])
	a.r += n
	return n, nil
}

// fill reads once from the connection. It is the only one that adds to what there is.
func (a *readAhead) fill(int) error {
	if a.err != nil {
		return a.err
	}
	var n int
	var err error
	if a.r == a.w {
		a.r, a.w = 0, 0
		n, err = a.readEmpty()
	} else {
		switch full := a.w == len(a.buf); {
		case full && a.class == 0:
			a.grow()
		case full, len(a.buf)-a.r < maxRecord/2:
			a.w, a.r = copy(a.buf, a.buf[a.r:a.w]), 0
		}
		n, err = a.c.Read(a.buf[a.w:])
	}
	a.w += n
	switch {
	case a.w == len(a.buf):
		a.next = len(readSizes) - 1
	case n < firstReadBuffer:
		a.next = 0
	}
	if n > 0 {
		a.err = err
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// readEmpty reads while nothing is left in the buffer: a socket is waited for without one.
func (a *readAhead) readEmpty() (int, error) {
	if a.sock.raw == nil {
		if a.buf == nil || a.class != a.next {
			a.drop()
			a.get(a.next, false)
		}
		return a.c.Read(a.buf)
	}
	if err := a.sock.raw.Read(a.try); err != nil {
		return 0, err
	}
	switch {
	case a.tryErr != nil:
		return 0, &net.OpError{Op: "read", Net: a.c.LocalAddr().Network(), Source: a.c.LocalAddr(), Addr: a.c.RemoteAddr(), Err: os.NewSyscallError("read", a.tryErr)}
	case a.tryN == 0:
		return 0, io.EOF
	}
	return a.tryN, nil
}

// attempt reads what has arrived; false if that is nothing.
func (a *readAhead) attempt(fd uintptr) bool {
	if a.buf != nil && a.class != a.next {
		a.drop()
	}
	if a.buf == nil {
		a.get(a.next, false)
	}
	a.tryN, a.tryErr = a.sock.read(fd, a.buf)
	a.tryN = max(a.tryN, 0)
	if a.tryErr == syscall.EAGAIN {
		a.drop()
		return false
	}
	return true
}

// grow moves what is unread to the start of a larger buffer. With little memory left it
// stays in the small one, in which there is room for a whole record of TLS.
func (a *readAhead) grow() {
	old := *a
	a.get(len(readSizes)-1, old.r == 0)
	a.r, a.w = 0, copy(a.buf, old.buf[old.r:old.w])
	old.drop()
}

// Write implements net.Conn for crypto/tls.
func (c *recordConn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.held == nil {
		return c.Conn.Write(p)
	}
	total := 0
	for {
		n := copy(c.held[len(c.held):cap(c.held)], p)
		c.held = c.held[:len(c.held)+n]
		total, p = total+n, p[n:]
		if len(p) == 0 {
			return total, nil
		}
		if err := c.flush(); err != nil {
			return total, err
		}
	}
}

// cork holds writes back until uncork, or until the buffer is full.
func (c *recordConn) cork() {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.started = false
	if c.st != nil {
		c.frame = getFrameBuf()
		c.held = c.frame.payload()[:0]
		return
	}
	c.buf = corkBufs.Get().(*[]byte)
	c.held = *c.buf
}

func (c *recordConn) uncork() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	err := c.flush()
	if c.frame != nil {
		putFrameBuf(c.frame)
	} else {
		corkBufs.Put(c.buf)
	}
	c.held, c.frame, c.buf = nil, nil, nil
	return err
}

func (c *recordConn) flush() error {
	if len(c.held) == 0 {
		return nil
	}
	sent, err := c.send()
	if err != nil && sent == 0 && !c.started {
		err = fmt.Errorf("%w: %w", errUnsent, err)
	}
	c.started = true
	c.held = c.held[:0]
	return err
}

// send writes held and returns how much of it may have gone out.
func (c *recordConn) send() (int, error) {
	if c.frame == nil {
		return c.Conn.Write(c.held)
	}
	if err := c.st.broken(); err != nil {
		return 0, err
	}
	n := len(c.held)
	_, err := c.st.writeFrame(c.frame, frameFront, n)
	return n, err
}
