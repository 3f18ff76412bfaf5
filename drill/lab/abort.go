package lab

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/demoapp"
	"github.com/isthmus-mesh/isthmus/drill/measure"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// abortBuffer is the receive buffer of connections that are broken off, in bytes.
const abortBuffer = 32 << 10

// breakOff makes a connection that the client ends by itself, at the point that
// was drawn for it. What goes wrong before that point is a failure, or a cut
// once the application has answered.
func (c *clients) breakOff(ctx context.Context, n int, a *measure.Attempt, deadline time.Time) {
	conn, err := c.network.dial(ctx, deadline, c.layout.Clients[a.Client].Listen[a.Port])
	if err != nil {
		a.Done, a.Error = time.Since(c.zero), describe(err)
		return
	}
	tcp := conn.(*net.TCPConn)
	defer tcp.Close()
	tcp.SetReadBuffer(abortBuffer) // what it does not read waits on the way, not here
	if a.Abort.How == "reset" {
		tcp.SetLinger(0)
	}
	if a.Abort.Wait > 0 {
		// It gives up before it knows what became of it.
		fmt.Fprintf(tcp, "hello %d\n", n)
		sleep(ctx, time.Until(c.zero.Add(a.Started+a.Abort.Wait)))
		a.Aborted = max(time.Since(c.zero), 1)
		a.Done = a.Aborted
		return
	}
	tcp.SetDeadline(deadline)
	r := bufio.NewReaderSize(tcp, 32<<10)
	pod, err := c.askForTransfer(tcp, r, n, a)
	a.Done = time.Since(c.zero)
	if err != nil {
		a.Error = describe(err)
		return
	}
	a.Pod = pod
	if err := transferPart(tcp, r, a.Abort); err != nil {
		a.CutAt, a.CutError = time.Since(c.zero), describe(err)
		return
	}
	sleep(ctx, a.Abort.Stop)
	a.Aborted = max(time.Since(c.zero), 1)
}

// askForTransfer sends the line that begins the transfer, and returns who
// answers it.
func (c *clients) askForTransfer(conn net.Conn, r *bufio.Reader, n int, a *measure.Attempt) (string, error) {
	if c.exchange == "banner" {
		if _, err := c.answer(r, a, ""); err != nil {
			return "", err
		}
	}
	word := demoapp.Pour
	if a.Abort.Upload {
		word = demoapp.Sink
	}
	if _, err := fmt.Fprintf(conn, "%s %d %d\n", word, n, scenario.TransferBytes); err != nil {
		return "", err
	}
	return c.answer(r, a, strconv.Itoa(n))
}

// transferPart reads or writes the part of the transfer before the point at
// which it is broken off, and compares what it reads.
func transferPart(conn net.Conn, r *bufio.Reader, b scenario.Abort) error {
	buf := make([]byte, 32<<10)
	for at := 0; at < b.After; {
		part := buf[:min(len(buf), b.After-at)]
		if b.Upload {
			n, err := conn.Write(part)
			if at += n; err != nil {
				return err
			}
			continue
		}
		n, err := r.Read(part)
		for i, got := range part[:n] {
			if got != demoapp.PatternAt(at+i) {
				return errWrong
			}
		}
		if at += n; err != nil {
			return err
		}
	}
	return nil
}
