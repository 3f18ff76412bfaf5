package nodeproxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
	"github.com/isthmus-mesh/isthmus/nodeproxy/sockdiag"
)

// stopper is an application that can stop accepting, with a queue that can be filled.
type stopper struct {
	t      *testing.T
	l      *net.TCPListener
	name   string
	conns  sync.WaitGroup
	ended  chan struct{} // the accept loop
	filled []net.Conn
}

func newStopper(t *testing.T, name string, at netip.AddrPort) *stopper {
	t.Helper()
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := l.SyscallConn()
	raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 64) })
	if err != nil {
		t.Fatal(err)
	}
	s := &stopper{t: t, l: l, name: name}
	s.accept()
	t.Cleanup(func() {
		s.l.Close()
		<-s.ended
		s.conns.Wait()
	})
	return s
}

func (s *stopper) accept() {
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		for {
			c, err := s.l.Accept()
			if err != nil {
				return
			}
			s.conns.Go(func() { s.answer(c) })
		}
	}()
}

func (s *stopper) answer(c net.Conn) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(meshtest.ExchangeTimeout))
	if line, err := bufio.NewReader(c).ReadString('\n'); err == nil {
		fmt.Fprintf(c, "%s 8080 %s", s.name, line[len("hello "):])
	}
}

// fill stops accepting, and returns when the kernel says that the queue takes nobody any more. That a connection is late
// says nothing: on a busy machine one is, and there is room for others, which then wait for an answer and not for a place.
func (s *stopper) fill() {
	s.t.Helper()
	s.l.SetDeadline(time.Unix(1, 0))
	<-s.ended
	sockets := s.sockets()
	defer sockets.Close()
	d := net.Dialer{Timeout: 20 * time.Millisecond}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if l := s.queue(sockets); l.Full() {
			return
		} else if time.Now().After(deadline) {
			s.t.Fatalf("%d wait for %v to accept, of %d, after 10 s", l.Queue, l.Local, l.Backlog)
		}
		c, err := d.Dial("tcp4", s.l.Addr().String())
		if late := net.Error(nil); errors.As(err, &late) && late.Timeout() {
			continue
		} else if err != nil {
			s.t.Fatal(err)
		}
		s.filled = append(s.filled, c)
	}
}

func (s *stopper) sockets() *sockdiag.Table {
	s.t.Helper()
	sockets, err := sockdiag.Open(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return sockets
}

// queue is what the kernel says of its listener.
func (s *stopper) queue(sockets *sockdiag.Table) sockdiag.Listener {
	l, there, err := sockets.Listener(netip.MustParseAddrPort(s.l.Addr().String()))
	if err != nil || !there {
		s.t.Errorf("listener of %v: there %v, error %v", s.l.Addr(), there, err)
	}
	return l
}

// heal accepts again, those first that wait.
func (s *stopper) heal() {
	for _, c := range s.filled {
		c.Close()
	}
	s.l.SetDeadline(time.Time{})
	s.accept()
}

// said is one exchange of a client.
type said struct {
	began time.Time
	took  time.Duration
	pod   string
	err   error
}

// steadily says hello n times, every 5 ms, whatever comes of the ones before.
func steadily(at netip.AddrPort, n int) []said {
	out := make([]said, n)
	var wg sync.WaitGroup
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := range out {
		<-tick.C
		wg.Go(func() {
			began := time.Now()
			pod, err := meshtest.Hello(at)
			out[i] = said{began, time.Since(began), pod, err}
		})
	}
	wg.Wait()
	return out
}

// leftWithin counts the connects that the first pod's node proxy gave up for their clients, and had waited less than d.
func leftWithin(t *testing.T, p *pair, d time.Duration) (n int) {
	t.Helper()
	for _, line := range p.node(1).Log.Find("connection", "direction", "inbound", "result", "withdrawn") {
		if ms, err := strconv.ParseFloat(line.Text("duration_ms"), 64); err != nil {
			t.Fatal(err)
		} else if ms < float64(d.Milliseconds()) {
			n++
		}
	}
	return n
}

// lastArrival is when the last call so far began at the first pod's node proxy.
func lastArrival(t *testing.T, p *pair) (last time.Time) {
	t.Helper()
	for _, line := range p.node(1).Log.Find("connection", "direction", "inbound") {
		at, err := time.Parse(time.RFC3339Nano, line.Text("started"))
		if err != nil {
			t.Fatal(err)
		}
		if at.After(last) {
			last = at
		}
	}
	return last
}

// filledArm is what is on while an accept queue is full.
type filledArm struct {
	name             string
	hedge, listeners bool
}

// atFilledQueue is what clients met while the queue of one of four applications was full.
type atFilledQueue struct {
	last          time.Duration // after the queue was full, the last call began that it held up
	p99, longest  time.Duration
	leftSoon      int           // calls that left the queue before connecting had taken 100 ms
	machineLateBy time.Duration // at most, meanwhile
}

// misses are the bounds that are not kept, which may be the machine's doing.
func (m atFilledQueue) misses(arm filledArm) (missed []string) {
	miss := func(format string, a ...any) { missed = append(missed, fmt.Sprintf(format, a...)) }
	if arm.hedge && arm.listeners {
		if m.last > 100*time.Millisecond {
			miss("a connection met the full queue that began %v after it was full", m.last)
		}
		if m.leftSoon == 0 {
			miss("no call left the full queue before connecting had taken 100 ms")
		}
	}
	if arm.hedge && m.p99 > 900*time.Millisecond { // a process that is late itself tells nobody
		miss("one of a hundred took %v; want less than until the kernel asks again", m.p99)
	}
	return missed
}

// One of four applications stops accepting, and its queue is full, at 200 connections/s:
// what clients wait for, with the hedge and without, and with the witness's look at
// sockets and without. A bound that is missed while the machine was late itself is measured again.
func TestAFilledAcceptQueueAtTwoHundredConnectionsASecond(t *testing.T) {
	for _, arm := range []filledArm{
		{"neither", false, false},
		{"hedge alone", true, false},
		{"listeners alone", false, true},
		{"both", true, true},
	} {
		t.Run(arm.name, func(t *testing.T) {
			const tries, calm = 4, 10 * time.Millisecond
			for n := 1; ; n++ {
				var m atFilledQueue
				if !t.Run(strconv.Itoa(n), func(t *testing.T) { m = arm.measure(t) }) {
					return
				}
				if !arm.hedge && !arm.listeners && m.longest < 900*time.Millisecond {
					t.Errorf("the longest took %v: nobody met the full queue", m.longest)
				}
				missed := m.misses(arm)
				if len(missed) == 0 {
					return
				}
				if n == tries || m.machineLateBy < calm {
					t.Fatalf("the machine was late by %v at most: %s", m.machineLateBy, strings.Join(missed, "; "))
				}
				t.Logf("measured again, for the machine was late by %v: %s", m.machineLateBy, strings.Join(missed, "; "))
			}
		})
	}
}

func (arm filledArm) measure(t *testing.T) (m atFilledQueue) {
	p := reported(t, 4)
	p.EachNode = func(c *nodeproxy.Config) {
		c.Retry.Hedge, c.OutlierDetection.Listeners = arm.hedge, arm.listeners
	}
	sick := newStopper(t, "hello-1", p.pods[0].At(8080))
	for _, pod := range p.pods[1:] {
		pod.App(8080)
	}
	p.Start()
	warm(t, p)
	steadily(p.listen.hello, 40)
	sick.fill()
	full := time.Now()
	lateness := meshtest.WatchLateness()
	all := steadily(p.listen.hello, 300)
	m.machineLateBy = lateness.Stop()
	arrived := lastArrival(t, p)
	sick.heal()

	failed, late := 0, 0
	for _, x := range all {
		m.longest = max(m.longest, x.took)
		switch {
		case x.err != nil:
			failed++
			t.Errorf("begun %v after: %v", x.began.Sub(full), x.err)
		case x.took > 90*time.Millisecond:
			late++
			if !x.began.After(arrived) { // else the machine is slow, not the queue
				m.last = max(m.last, x.began.Sub(full).Round(time.Millisecond))
			}
		}
	}
	slices.SortFunc(all, func(a, b said) int { return int(a.took - b.took) })
	took := func(q float64) time.Duration {
		return all[int(q*float64(len(all)-1))].took.Round(100 * time.Microsecond)
	}
	m.p99 = took(0.99)
	m.leftSoon = leftWithin(t, p, 90*time.Millisecond)
	t.Logf("of %d: %d failed, %d took more than 90 ms, the last of these that can have met the queue begun %v after; median %v, p99 %v, longest %v; the machine was late by %v",
		len(all), failed, late, m.last, took(0.5), m.p99, m.longest.Round(100*time.Microsecond), m.machineLateBy)
	for _, result := range []string{"withdrawn", "accepted", "refused", "unanswered", "nobody", "budget"} {
		if n := p.client().Metric(t, `isthmus_hedges_total{result="`+result+`"}`); n > 0 {
			t.Logf("hedges %s: %v", result, n)
		}
	}
	return m
}

// busy accepts one connection each pause, and others see to it that its queue is never
// short: whoever comes is dropped now and then.
func (s *stopper) busy(pause time.Duration) (rest func()) {
	s.l.SetDeadline(time.Unix(1, 0))
	<-s.ended
	s.l.SetDeadline(time.Time{})
	sockets := s.sockets()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			c, err := s.l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { s.answer(c) })
		}
	})
	wg.Go(func() {
		d := net.Dialer{Timeout: 3 * time.Millisecond}
		for deep := false; ; {
			if deep {
				time.Sleep(pause * 3 / 4)
			}
			select {
			case <-stop:
				return
			default:
			}
			if c, err := d.Dial("tcp4", s.l.Addr().String()); err == nil {
				c.Close() // it stays in the queue
			}
			l := s.queue(sockets)
			deep = l.Full() || deep && l.Queue > l.Backlog/2
		}
	})
	return func() {
		close(stop)
		s.l.SetDeadline(time.Unix(1, 0))
		wg.Wait()
		sockets.Close()
		s.heal()
	}
}

// One of two applications is behind all the time: its queue is deep, often full, and drains. Whoever is
// dropped goes elsewhere at once, and nobody says that the queue does not drain. A question of the witness has
// several connects; if all of them are dropped, which is rare, the application is out until it answers the next one, which is soon.
func TestABusyApplicationIsNotTakenForOneThatHasStopped(t *testing.T) {
	p := reported(t, 2)
	busy := newStopper(t, "hello-1", p.pods[0].At(8080))
	p.pods[1].App(8080)
	p.Start()
	warm(t, p)
	rest := busy.busy(4 * time.Millisecond)
	var all []said
	told := func() float64 { return p.node(1).Metric(t, `isthmus_slow_connects_total{told="yes"}`) }
	for n := 0; n < 4 || told() == 0 && n < 40; n++ {
		all = append(all, steadily(p.listen.hello, 100)...)
	}
	stalled := p.node(1).Log.Find("outlier changed", "edge", "ejected", "reason", "stalled")
	dropped := len(p.node(1).Log.Find("outlier changed", "edge", "ejected", "reason", "timeout"))
	meshtest.Eventually(t, "the busy application is back", func() bool {
		return len(p.node(1).Log.Find("outlier changed", "edge", "readmitted")) >= dropped
	})
	rest()
	served, longest := 0, time.Duration(0)
	for _, x := range all {
		longest = max(longest, x.took)
		if x.err != nil {
			t.Errorf("%v", x.err)
		}
		if x.pod == "hello-1" {
			served++
		}
	}
	t.Logf("of %d the busy one served %d; %v were told that it is slow, the longest took %v; ejected %d times", len(all), served, told(), longest, dropped)
	if told() == 0 {
		t.Error("nobody met a full queue: this proves nothing")
	}
	if len(stalled) > 0 {
		t.Errorf("its queue is said not to drain: %v", stalled[0])
	}
	if dropped > len(all)/200 {
		t.Errorf("it was ejected %d times by dropped questions", dropped)
	}
	if served < len(all)/16 {
		t.Errorf("it served %d of %d", served, len(all))
	}
}
