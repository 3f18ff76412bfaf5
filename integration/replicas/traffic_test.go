//go:build linux

package replicas

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// patience is how long a connection may take.
const patience = 20 * time.Second

// The application speaks first and echoes then, so that a connection has sent nothing before it
// is open: whatever happens until then may be repeated elsewhere, and none may fail. What is cut after
// its first byte was open.
func (w *world) serveApps() error {
	for i, at := range pods {
		l, err := w.Listen("server", at+":8080")
		if err != nil {
			return err
		}
		go func() { // ends with the process
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					c.Write([]byte{byte(i)})
					io.Copy(c, c)
				}()
			}
		}()
	}
	return nil
}

// exchange is one connection: how long until its first byte came, and what went wrong before
// (failed) or after it (cut).
type exchange struct {
	began       time.Time
	took        time.Duration
	failed, cut error
}

// connect makes one connection.
func (w *world) connect() (x exchange) {
	x.began = time.Now()
	c, err := w.Dial("client", entry)
	if err != nil {
		x.failed = err
		return x
	}
	defer c.Close()
	c.SetDeadline(x.began.Add(patience))
	b := make([]byte, 64)
	_, err = io.ReadFull(c, b[:1])
	if x.took = time.Since(x.began); err != nil {
		x.failed = fmt.Errorf("no first byte within %v: %w", x.took.Round(time.Millisecond), err)
		return x
	}
	x.cut = echo(c, b)
	return x
}

func echo(c *net.TCPConn, b []byte) error {
	if _, err := io.WriteString(c, "hello"); err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	n, err := io.ReadFull(c, b)
	if err != io.ErrUnexpectedEOF || string(b[:n]) != "hello" {
		return fmt.Errorf("the echo is %q, %w", b[:n], err)
	}
	return nil
}

// traffic is so many connections a second until it is stopped.
type traffic struct {
	stop chan struct{}
	work sync.WaitGroup

	mu  sync.Mutex
	all []exchange
}

func (w *world) traffic(perSecond int) *traffic {
	x := &traffic{stop: make(chan struct{})}
	x.work.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		begun, start := 0, time.Now()
		for {
			select {
			case <-x.stop:
				return
			case <-tick.C:
			}
			for ; begun < int(time.Since(start).Seconds()*float64(perSecond)); begun++ { // a busy machine loses ticks
				x.work.Go(func() {
					e := w.connect()
					x.mu.Lock()
					defer x.mu.Unlock()
					x.all = append(x.all, e)
				})
			}
		}
	})
	return x
}

// count is what came of the connections that began in [from, to).
type count struct {
	made, failed, cut int
	p50, p99, most    time.Duration
	err               error // the first
}

func (x *traffic) count(from, to time.Time) (c count) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var took []time.Duration
	for _, e := range x.all {
		if e.began.Before(from) || !e.began.Before(to) {
			continue
		}
		c.made++
		took = append(took, e.took)
		if e.failed != nil {
			c.failed++
		}
		if e.cut != nil {
			c.cut++
		}
		if err := errors.Join(e.failed, e.cut); err != nil && c.err == nil {
			c.err = err
		}
	}
	slices.Sort(took)
	if n := len(took); n > 0 {
		c.p50, c.p99, c.most = took[n/2], took[n*99/100], took[n-1]
	}
	return c
}

func (c count) String() string {
	ms := func(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }
	return fmt.Sprintf("%d connections, %d failed, %d cut after their first byte; first byte after %s in the middle, %s at p99, %s at most", c.made, c.failed, c.cut, ms(c.p50), ms(c.p99), ms(c.most))
}

// reasons are why connections failed, by the log of the client's node proxy, each with how
// often.
func (w *world) reasons() map[string]int {
	text, err := os.ReadFile(w.log("client"))
	if err != nil {
		return nil
	}
	out := map[string]int{}
	for line := range bytes.Lines(text) {
		var x struct{ Message, Result, Error string }
		if json.Unmarshal(line, &x) == nil && x.Message == "connection" && x.Result != "ok" {
			out[x.Result+": "+x.Error]++
		}
	}
	return out
}
