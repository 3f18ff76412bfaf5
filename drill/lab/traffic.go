package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/measure"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// clients opens the connections of a schedule, each at its time, however the
// ones before it fare.
type clients struct {
	network  *network
	layout   *scenario.Layout
	exchange string
	zero     time.Time // the first instant of traffic
}

// run returns one attempt per arrival, in order. When ctx ends it gives up
// early: then the result is not to be used.
func (c *clients) run(ctx context.Context, schedule []scenario.Arrival) []measure.Attempt {
	out := make([]measure.Attempt, len(schedule))
	var all sync.WaitGroup
	defer all.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i, a := range schedule {
		timer.Reset(a.At - time.Since(c.zero))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return out
		}
		out[i].Arrival = a
		all.Go(func() { c.connect(ctx, i, &out[i]) })
	}
	return out
}

// connect makes one connection and fills in what became of it.
func (c *clients) connect(ctx context.Context, n int, a *measure.Attempt) {
	a.Started = time.Since(c.zero)
	deadline := c.zero.Add(a.At + c.layout.Scenario.Traffic.Timeout)
	if a.Abort.How != "" {
		c.breakOff(ctx, n, a, deadline)
		return
	}
	conn, r, pod, err := c.first(ctx, n, a, deadline)
	a.Done = time.Since(c.zero)
	if conn != nil {
		defer conn.Close()
	}
	if err != nil {
		a.Error = describe(err)
		return
	}
	a.Pod = pod
	if a.Hold > 0 {
		c.hold(ctx, n, a, conn, r)
	}
}

// first dials and makes the first exchange.
func (c *clients) first(ctx context.Context, n int, a *measure.Attempt, deadline time.Time) (net.Conn, *bufio.Reader, string, error) {
	conn, err := c.network.dial(ctx, deadline, c.layout.Clients[a.Client].Listen[a.Port])
	if err != nil {
		return nil, nil, "", err
	}
	conn.SetDeadline(deadline)
	r := bufio.NewReaderSize(conn, 256)
	want := ""
	if c.exchange == "request" {
		want = strconv.Itoa(n)
		if _, err := fmt.Fprintf(conn, "hello %s\n", want); err != nil {
			return conn, r, "", err
		}
	}
	pod, err := c.answer(r, a, want)
	return conn, r, pod, err
}

// errWrong is an answer that the application cannot have given.
var errWrong = errors.New("wrong answer")

// answer reads "<pod> <port>[ <n>]" and checks all of it: bytes that belong to
// another connection, pod or port are a failure like any other.
func (c *clients) answer(r *bufio.Reader, a *measure.Attempt, n string) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	f := strings.Fields(line)
	want := []string{strconv.Itoa(int(c.layout.Scenario.Ports()[a.Port].Target))}
	if n != "" {
		want = append(want, n)
	}
	if len(f) != len(want)+1 || strings.Join(f[1:], " ") != strings.Join(want, " ") {
		return "", errWrong
	}
	if _, known := c.layout.Pod(f[0]); !known {
		return "", errWrong
	}
	return f[0], nil
}

// hold keeps the connection and exchanges a line now and then until its time
// is over; it notes when and how the connection breaks.
func (c *clients) hold(ctx context.Context, n int, a *measure.Attempt, conn net.Conn, r *bufio.Reader) {
	t := c.layout.Scenario.Traffic
	end := c.zero.Add(a.At + a.Hold)
	broke := func(err error) {
		if ctx.Err() == nil {
			a.CutAt, a.CutError = time.Since(c.zero), describe(err)
		}
	}
	for i := 1; ; i++ {
		// Between exchanges it listens: a break is seen when it happens.
		until := time.Now().Add(t.Hold.Every)
		if until.After(end) {
			until = end
		}
		conn.SetReadDeadline(until)
		if _, err := r.Peek(1); err == nil {
			broke(errWrong)
			return
		} else if !timedOut(err) {
			broke(err)
			return
		}
		if !time.Now().Before(end) || ctx.Err() != nil {
			return
		}
		word := fmt.Sprintf("%d.%d", n, i)
		conn.SetDeadline(time.Now().Add(t.Timeout))
		if _, err := fmt.Fprintf(conn, "again %s\n", word); err != nil {
			broke(err)
			return
		}
		pod, err := c.answer(r, a, word)
		if err == nil && pod != a.Pod {
			err = errWrong
		}
		if err != nil {
			broke(err)
			return
		}
	}
}

func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// describe puts an error into one of a few words, so that they can be counted.
func describe(err error) string {
	switch {
	case errors.Is(err, errWrong):
		return "wrong answer"
	case timedOut(err):
		return "timeout"
	case errors.Is(err, io.EOF):
		return "closed"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused by the node proxy"
	case errors.Is(err, context.Canceled):
		return "interrupted"
	}
	return "other"
}

// warmUp connects through every listener until each has answered three times
// in a row, or ctx ends.
func (c *clients) warmUp(ctx context.Context) error {
	for i, k := range c.layout.Clients {
		for j := range k.Listen {
			for good, last := 0, error(nil); good < 3; {
				a := measure.Attempt{Arrival: scenario.Arrival{Client: i, Port: j}}
				conn, _, _, err := c.first(ctx, 0, &a, time.Now().Add(2*time.Second))
				if conn != nil {
					conn.Close()
				}
				good++
				if err != nil {
					good, last = 0, err
					if !sleep(ctx, 50*time.Millisecond) {
						return fmt.Errorf("no answer through %s at %s: %w", k.Node, k.Listen[j], last)
					}
				}
			}
		}
	}
	return nil
}

// sleep waits for d; false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
