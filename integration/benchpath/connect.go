//go:build linux

package main

import (
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// connect opens connections for the time, r.Streams at once: dial, one byte, one
// byte back, close. Without a time it is one connection on each. The application
// closes first, so that no port of a dialing side has to wait: a path would
// otherwise run out of ports, or search long for one.
func connect(r request, _ []*net.TCPConn, t *tally) []*net.TCPConn {
	end := time.Now().Add(r.duration())
	var wg sync.WaitGroup
	for range r.Streams {
		wg.Go(func() {
			var times []time.Duration
			for {
				took, err := once(r.Target)
				if err != nil {
					t.fail(err)
				} else {
					times = append(times, took)
				}
				if !time.Now().Before(end) {
					break
				}
			}
			t.took(times...)
		})
	}
	wg.Wait()
	return nil
}

// once returns the time from dial to the byte back.
func once(to target) (time.Duration, error) {
	start := time.Now()
	c, err := to.open(verbOnce)
	if err != nil {
		return 0, err
	}
	took := time.Since(start)
	defer c.Close()
	c.SetDeadline(start.Add(patience))
	if n, err := io.Copy(io.Discard, c); n != 0 || err != nil {
		return 0, fmt.Errorf("a connection ends with %d bytes more, %v", n, err)
	}
	return took, nil
}

// hold opens connections that then stay idle until the load is over.
func hold(r request, _ []*net.TCPConn, t *tally) []*net.TCPConn {
	conns := openMany(r.Target, verbEcho, r.Streams, t)
	t.took(make([]time.Duration, len(conns))...)
	return conns
}
