//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const echoBytes = 1 << 10

// echo sends the next message on each connection when the last one is back.
func echo(r request, conns []*net.TCPConn, t *tally) []*net.TCPConn {
	end := time.Now().Add(r.duration())
	each(conns, t, func(c *net.TCPConn) error {
		c.SetDeadline(end.Add(patience))
		var times []time.Duration
		defer func() { t.took(times...) }()
		for out, in := make([]byte, echoBytes), make([]byte, echoBytes); ; {
			sent := time.Now()
			if sent.After(end) {
				return nil
			}
			binary.BigEndian.PutUint64(out, uint64(len(times)+1))
			if err := exchange(c, out, in); err != nil {
				return err
			}
			times = append(times, time.Since(sent))
		}
	})
	return nil
}

func exchange(c net.Conn, out, in []byte) error {
	if _, err := c.Write(out); err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	if _, err := io.ReadFull(c, in); err != nil {
		return fmt.Errorf("wait for an echo: %w", err)
	}
	if !bytes.Equal(in, out) {
		return errors.New("an echo differs from what was sent")
	}
	return nil
}

// paced sends messages at a fixed rate, in turn on all connections, whether or
// not earlier ones are back. A message's time counts from when it should have
// been sent: a path that stops for a while cannot hide it by slowing the load.
func paced(r request, conns []*net.TCPConn, t *tally) []*net.TCPConn {
	if len(conns) == 0 {
		return nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	var beside []*net.TCPConn
	if r.Beside {
		beside = openMany(r.Target, verbUp, 1, t)
		wg.Go(func() { upload(r, beside, t) })
	}
	p := pace{start: time.Now(), every: time.Duration(float64(time.Second) / r.Rate), total: int(r.Rate * r.Seconds), conns: conns}
	for i, c := range conns {
		c.SetDeadline(p.at(p.total).Add(patience))
		wg.Go(func() { p.receive(i, t) })
	}
	p.send()
	return beside
}

// pace is a sequence of messages: number i goes out on connection i modulo their
// number.
type pace struct {
	start time.Time
	every time.Duration
	total int
	conns []*net.TCPConn
}

func (p *pace) at(i int) time.Time { return p.start.Add(time.Duration(i) * p.every) }

// send has a thread of its own: the runtime's timers are only precise to a
// millisecond when nothing else happens, and Linux takes up to 50 µs more unless
// it is told not to.
func (p *pace) send() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	message := make([]byte, echoBytes)
	for i := range p.total {
		if d := time.Until(p.at(i)); d > 0 {
			ts := unix.NsecToTimespec(int64(d))
			unix.Nanosleep(&ts, nil)
		}
		binary.BigEndian.PutUint64(message, uint64(i))
		p.conns[i%len(p.conns)].Write(message) // its receiver sees when it fails
	}
}

// receive takes the echoes of one connection, in order.
func (p *pace) receive(conn int, t *tally) {
	var times []time.Duration
	defer func() { t.took(times...) }()
	message := make([]byte, echoBytes)
	for i := conn; i < p.total; i += len(p.conns) {
		if _, err := io.ReadFull(p.conns[conn], message); err != nil {
			t.fail(fmt.Errorf("wait for echo %d at a fixed rate: %w", i, err))
			return
		}
		if got := binary.BigEndian.Uint64(message); got != uint64(i) {
			t.fail(fmt.Errorf("echo %d arrives as %d", i, got))
			return
		}
		times = append(times, time.Since(p.at(i)))
	}
}
