//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"syscall"
	"time"
)

// exchange is what one connection is to do; the client sends it ahead, so that
// both ends know. Each byte of the payload follows from seed and position.
type exchange struct {
	Seed         uint64
	Up, Down     uint32 // payload bytes
	ClientAborts uint32 // after so many bytes in both directions together; never: no abort
	ServerAborts uint32
	ClientPauses uint32 // milliseconds without reading, half way
	ServerPauses uint32
}

const never = math.MaxUint32

// most is how long an exchange may take: longer is a failure of whatever waits.
const most = 30 * time.Second

// draw draws what the next connection does.
func draw(rng *rand.Rand, abort float64) exchange {
	e := exchange{Seed: rng.Uint64(), Up: size(rng), Down: size(rng), ClientAborts: never, ServerAborts: never}
	all := e.Up + e.Down
	if rng.Float64() < abort {
		at := rng.Uint32N(all + 1)
		if rng.IntN(2) == 0 {
			e.ClientAborts = at
		} else {
			e.ServerAborts = at
		}
	}
	if rng.IntN(20) == 0 {
		e.ClientPauses = rng.Uint32N(500)
	}
	if rng.IntN(20) == 0 {
		e.ServerPauses = rng.Uint32N(500)
	}
	return e
}

// size draws a length in bytes: mostly small, now and then a few MiB.
func size(rng *rand.Rand) uint32 {
	if rng.IntN(50) == 0 {
		return rng.Uint32N(4 << 20)
	}
	return rng.Uint32N(1 << rng.UintN(18))
}

var headerSize = binary.Size(exchange{})

// outcome is what one end saw.
type outcome struct {
	aborted bool  // this end broke off
	err     error // nil: everything came, and the end after it
}

// errTruncated is an end where more was due.
var errTruncated = errors.New("ended early, as if complete")

// errCorrupt is a byte that is not the one that was sent.
var errCorrupt = errors.New("another byte than was sent")

// end is one side of an exchange.
type end struct {
	c       *net.TCPConn
	moved   chan uint32   // bytes of both directions, from reader and writer
	abortAt uint32        // of moved
	pause   time.Duration // before reading the second half
}

// client does its side of e on c. It keeps the connection open for hold before it sends
// anything but the header.
func client(c *net.TCPConn, e exchange, hold time.Duration) outcome {
	head, _ := binary.Append(nil, binary.BigEndian, e)
	c.SetDeadline(time.Now().Add(most))
	if _, err := c.Write(head); err != nil {
		c.Close()
		return outcome{err: err}
	}
	time.Sleep(hold)
	x := end{c: c, abortAt: e.ClientAborts, pause: time.Duration(e.ClientPauses) * time.Millisecond}
	return x.run(pattern{e.Seed}, e.Up, pattern{^e.Seed}, e.Down)
}

// serve does the server's side of whatever the client asks for.
func serve(c *net.TCPConn) (exchange, outcome) {
	var e exchange
	c.SetDeadline(time.Now().Add(most))
	head := make([]byte, headerSize)
	if _, err := io.ReadFull(c, head); err != nil {
		c.Close()
		return e, outcome{err: fmt.Errorf("read the header: %w", err)}
	}
	if _, err := binary.Decode(head, binary.BigEndian, &e); err != nil {
		c.Close()
		return e, outcome{err: err}
	}
	x := end{c: c, abortAt: e.ServerAborts, pause: time.Duration(e.ServerPauses) * time.Millisecond}
	return e, x.run(pattern{^e.Seed}, e.Down, pattern{e.Seed}, e.Up)
}

// run sends out bytes of one pattern and awaits in of the other, ends its half
// after the last byte, and resets the connection when abortAt is reached.
func (x *end) run(send pattern, out uint32, recv pattern, in uint32) outcome {
	defer x.c.Close()
	x.moved = make(chan uint32)
	sent, received := make(chan error, 1), make(chan error, 1)
	stop := make(chan struct{})
	defer close(stop)
	note := func(n int) bool {
		select {
		case x.moved <- uint32(n):
			return true
		case <-stop:
			return false
		}
	}
	go func() { sent <- x.send(send, out, note) }()
	go func() { received <- x.receive(recv, in, note) }()
	var total uint32
	var errs []error
	for done := 0; done < 2; {
		if total >= x.abortAt {
			x.c.SetLinger(0)
			return outcome{aborted: true}
		}
		select {
		case n := <-x.moved:
			total += n
		case err := <-sent:
			done++
			sent = nil
			errs = append(errs, err)
		case err := <-received:
			done++
			received = nil
			errs = append(errs, err)
		}
	}
	return outcome{err: first(errs)}
}

// first is the error that says what became of the connection: the kernel tells a
// reset once, to whoever asks first, and an end to the other.
func first(errs []error) error {
	for _, err := range errs {
		if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			return err
		}
	}
	return errors.Join(errs...)
}

const step = 16 << 10

func (x *end) send(p pattern, n uint32, note func(int) bool) error {
	buf := make([]byte, step)
	for at := uint32(0); at < n; {
		k := min(n-at, step)
		p.fill(buf[:k], at)
		w, err := x.c.Write(buf[:k])
		if err != nil {
			return fmt.Errorf("send byte %d of %d: %w", at+uint32(w), n, err)
		}
		at += k
		if !note(w) {
			return net.ErrClosed
		}
	}
	return x.c.CloseWrite()
}

func (x *end) receive(p pattern, n uint32, note func(int) bool) error {
	buf, want := make([]byte, step), make([]byte, step)
	paused := x.pause == 0
	for at := uint32(0); ; {
		if !paused && at >= n/2 {
			time.Sleep(x.pause)
			paused = true
		}
		k, err := x.c.Read(buf)
		if uint32(k) > n-at {
			return fmt.Errorf("byte %d of %d: %w", at+uint32(k), n, errCorrupt)
		}
		p.fill(want[:k], at)
		if string(buf[:k]) != string(want[:k]) {
			return fmt.Errorf("within byte %d and %d of %d: %w", at, at+uint32(k), n, errCorrupt)
		}
		at += uint32(k)
		switch {
		case err == io.EOF && at < n:
			return fmt.Errorf("%d of %d bytes: %w", at, n, errTruncated)
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("receive byte %d of %d: %w", at, n, err)
		}
		if !note(k) {
			return net.ErrClosed
		}
	}
}

// pattern is an endless sequence of bytes in which every position can be asked.
type pattern struct{ seed uint64 }

func (p pattern) fill(b []byte, at uint32) {
	for i := range b {
		x := (uint64(at) + uint64(i)) / 8
		x = (x + p.seed) * 0x9e3779b97f4a7c15
		x ^= x >> 29
		b[i] = byte(x >> (8 * ((uint64(at) + uint64(i)) % 8)))
	}
}
