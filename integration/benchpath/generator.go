//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"
)

// request asks a generator for one load.
type request struct {
	Kind    string // a key of kinds
	Target  target
	Streams int     // connections at once
	Seconds float64 // how long it goes on
	Rate    float64 // kind paced: echoes per second, over all connections
	Beside  bool    // kind paced: one upload goes on as well
}

// kind is a sort of load.
type kind struct {
	verb byte // of the connections that are opened before the load begins; 0 when none are
	run  func(request, []*net.TCPConn, *tally) (held []*net.TCPConn)
}

var kinds = map[string]kind{
	"up":      {verbUp, upload},
	"down":    {verbDown, download},
	"connect": {0, connect},
	"echo":    {verbEcho, echo},
	"paced":   {verbEcho, paced},
	"hold":    {0, hold},
}

// serveGenerator takes loads at a Unix socket, which is the same in every
// network namespace. It never returns.
//
// One connection is one load: a request comes, the generator opens the load's
// connections and says so by an empty line; a line comes, the load runs, and its
// reply is the last line. What is open then stays so until the other side closes.
func serveGenerator(socket string) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			generate(c)
		}()
	}
}

func generate(control net.Conn) {
	var r request
	in := bufio.NewReader(control)
	line, err := in.ReadBytes('\n')
	if err != nil || json.Unmarshal(line, &r) != nil {
		return
	}
	var t tally
	conns := openAll(r, &t)
	defer func() { closeAll(conns) }()
	fmt.Fprintln(control)
	if _, err := in.ReadBytes('\n'); err != nil {
		return
	}
	start := time.Now()
	conns = append(conns, kinds[r.Kind].run(r, conns, &t)...)
	json.NewEncoder(control).Encode(t.reply(time.Since(start).Seconds()))
	in.ReadByte() // until the other side closes
}

// openAll opens the connections that a load has from its beginning.
func openAll(r request, t *tally) []*net.TCPConn {
	if kinds[r.Kind].verb == 0 {
		return nil
	}
	return openMany(r.Target, kinds[r.Kind].verb, r.Streams, t)
}

// openMany opens n connections, up to 64 at a time, and returns those that
// opened.
func openMany(to target, verb byte, n int, t *tally) (conns []*net.TCPConn) {
	var mu sync.Mutex
	slots := make(chan struct{}, 64)
	var wg sync.WaitGroup
	for range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			c, err := to.open(verb)
			if err != nil {
				t.fail(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			conns = append(conns, c)
		})
	}
	wg.Wait()
	return conns
}

func closeAll(conns []*net.TCPConn) {
	for _, c := range conns {
		c.Close()
	}
}
