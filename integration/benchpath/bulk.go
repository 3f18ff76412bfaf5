//go:build linux

package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// drainTime is how long what is on its way may take after a bulk load's end.
const drainTime = time.Minute

func (r request) duration() time.Duration {
	return time.Duration(r.Seconds * float64(time.Second))
}

// each runs f for all connections at once.
func each(conns []*net.TCPConn, t *tally, f func(*net.TCPConn) error) {
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() {
			if err := f(c); err != nil {
				t.fail(err)
			}
		})
	}
	wg.Wait()
}

// upload sends on all connections for the time, ends each, and waits until the
// application has everything.
func upload(r request, conns []*net.TCPConn, t *tally) []*net.TCPConn {
	end := time.Now().Add(r.duration())
	each(conns, t, func(c *net.TCPConn) error {
		n, err := send(c, end)
		t.moved(n)
		return err
	})
	return nil
}

// send returns the bytes that the application got.
func send(c *net.TCPConn, end time.Time) (n int64, err error) {
	c.SetDeadline(end.Add(drainTime))
	buf := make([]byte, bulkBuffer)
	sent := int64(0)
	for time.Now().Before(end) {
		k, err := c.Write(buf)
		sent += int64(k)
		if err != nil {
			return 0, fmt.Errorf("upload: %w", err)
		}
	}
	c.CloseWrite()
	var got [8]byte
	if _, err := io.ReadFull(c, got[:]); err != nil {
		return 0, fmt.Errorf("wait for what the application got of an upload: %w", err)
	}
	if n = int64(binary.BigEndian.Uint64(got[:])); n != sent {
		err = fmt.Errorf("the application got %d of %d bytes of an upload", n, sent)
	}
	return n, err
}

// download receives on all connections for the time, then tells the application
// to stop and takes what is still on its way.
func download(r request, conns []*net.TCPConn, t *tally) []*net.TCPConn {
	end := time.Now().Add(r.duration())
	each(conns, t, func(c *net.TCPConn) error {
		n, err := receive(c, end)
		t.moved(n)
		return err
	})
	return nil
}

func receive(c *net.TCPConn, end time.Time) (n int64, err error) {
	c.SetDeadline(end.Add(drainTime))
	if _, err := c.Write([]byte{verbDown}); err != nil {
		return 0, fmt.Errorf("begin a download: %w", err)
	}
	stop := time.AfterFunc(time.Until(end), func() { c.CloseWrite() })
	defer stop.Stop()
	if n, err = discard(c); err != nil {
		return n, fmt.Errorf("download: %w", err)
	}
	if time.Now().Before(end) {
		err = fmt.Errorf("a download ended after %d bytes, before its time", n)
	}
	return n, err
}
