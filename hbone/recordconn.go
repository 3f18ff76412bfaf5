package hbone

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

const (
	tlsHeaderLen = 5
	tlsOverhead  = 17 // content type and tag of a TLS 1.3 record

	// A TCP connection starts with room for one record, so that ten thousand
	// handshakes that never end cost little, and gets the large buffer with the
	// first read that fills it.
	firstReadBuffer = 20 << 10
	tcpReadBuffer   = 256 << 10

	smallReadData  = 64<<10 + 2*tlsHeaderLen
	corkBufferSize = 4 * (16<<10 + tlsHeaderLen + tlsOverhead + 256)
)

// recordConn sits below crypto/tls. It reads ciphertext ahead in large pieces
// but hands out at most one record at a time, so that it always knows whether a
// complete record is at hand; and it can hold writes back to send them as one.
type recordConn struct {
	net.Conn
	lazy   interface{ WaitReadable() error } // the connection can wait without a buffer
	pooled *[]byte                           // buf's origin when lazy

	// Reading: one goroutine.
	buf  []byte
	r, w int
	left int   // bytes of the current record not handed out
	err  error // of the connection, after buf is used up
	dry  bool  // do not touch the connection

	wmu    sync.Mutex // taken by the writer, and by crypto/tls for alerts
	corked *[]byte
}

var (
	smallReadBufs = sync.Pool{New: func() any { b := make([]byte, smallReadData); return &b }}
	corkBufs      = sync.Pool{New: func() any { b := make([]byte, 0, corkBufferSize); return &b }}
)

func newRecordConn(raw net.Conn) *recordConn {
	c := &recordConn{Conn: raw}
	c.lazy, _ = raw.(interface{ WaitReadable() error })
	return c
}

// errDry is a temporary net.Error: crypto/tls does not remember those.
type errDry struct{}

func (errDry) Error() string   { return "hbone: no complete record at hand" }
func (errDry) Timeout() bool   { return true }
func (errDry) Temporary() bool { return true }

// Read implements net.Conn for crypto/tls.
func (c *recordConn) Read(p []byte) (int, error) {
	for c.left == 0 && c.w-c.r < tlsHeaderLen || c.r == c.w {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	if c.left == 0 {
		c.left = tlsHeaderLen + int(binary.BigEndian.Uint16(c.buf[c.r+3:]))
	}
	n := copy(p, c.buf[c.r:min(c.w, c.r+c.left)])
	c.r += n
	c.left -= n
	return n, nil
}

// next returns an upper bound of the plaintext in the next record, if that is
// completely at hand.
func (c *recordConn) next() (size int, ok bool) {
	have := c.w - c.r
	if c.left != 0 || have < tlsHeaderLen {
		return 0, false
	}
	size = int(binary.BigEndian.Uint16(c.buf[c.r+3:]))
	return size - tlsOverhead, have >= tlsHeaderLen+size
}

// await blocks until a complete record is at hand, or until Read has an error to
// return. Meanwhile a lazy connection holds no buffer.
func (c *recordConn) await() error {
	for {
		if _, ok := c.next(); ok || c.err != nil {
			return nil
		}
		if c.r == c.w && c.lazy != nil {
			c.release()
			if err := c.lazy.WaitReadable(); err != nil {
				c.keep(err)
				return nil
			}
		}
		if c.w-c.r == len(c.buf) && len(c.buf) >= smallReadData {
			return nil // a record larger than any: crypto/tls will say so
		}
		if err := c.fill(); err != nil {
			c.keep(err)
			return nil
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

// fill reads once from the connection.
func (c *recordConn) fill() error {
	switch {
	case c.dry:
		return errDry{}
	case c.err != nil:
		return c.err
	case c.buf == nil:
		c.acquire()
	}
	if c.w == len(c.buf) && c.lazy == nil && len(c.buf) < tcpReadBuffer {
		c.grow()
	} else if c.r == c.w {
		c.r, c.w = 0, 0
	} else if c.w == len(c.buf) || len(c.buf)-c.r < smallReadData/2 {
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	n, err := c.Conn.Read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		if err != nil {
			c.keep(err)
		}
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

func (c *recordConn) acquire() {
	if c.lazy == nil {
		c.buf = make([]byte, firstReadBuffer)
		return
	}
	c.pooled = smallReadBufs.Get().(*[]byte)
	c.buf = *c.pooled
}

// grow moves what is unread into the large buffer.
func (c *recordConn) grow() {
	buf := make([]byte, tcpReadBuffer)
	c.w = copy(buf, c.buf[c.r:c.w])
	c.r = 0
	c.buf = buf
}

func (c *recordConn) release() {
	if c.pooled != nil {
		smallReadBufs.Put(c.pooled)
		c.buf, c.pooled = nil, nil
	}
	c.r, c.w = 0, 0
}

// Write implements net.Conn for crypto/tls.
func (c *recordConn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.corked == nil {
		return c.Conn.Write(p)
	}
	if len(*c.corked)+len(p) > cap(*c.corked) {
		if err := c.flush(); err != nil {
			return 0, err
		}
	}
	if len(p) > cap(*c.corked) {
		return c.Conn.Write(p)
	}
	*c.corked = append(*c.corked, p...)
	return len(p), nil
}

// cork holds writes back until uncork, or until the buffer is full.
func (c *recordConn) cork() {
	c.wmu.Lock()
	c.corked = corkBufs.Get().(*[]byte)
	c.wmu.Unlock()
}

func (c *recordConn) uncork() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	err := c.flush()
	corkBufs.Put(c.corked)
	c.corked = nil
	return err
}

func (c *recordConn) flush() error {
	if len(*c.corked) == 0 {
		return nil
	}
	_, err := c.Conn.Write(*c.corked)
	*c.corked = (*c.corked)[:0]
	return err
}
