package nodeproxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
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

// fill stops accepting, and returns when the queue takes nobody any more.
func (s *stopper) fill() {
	s.t.Helper()
	s.l.SetDeadline(time.Unix(1, 0))
	<-s.ended
	d := net.Dialer{Timeout: 20 * time.Millisecond}
	for {
		c, err := d.Dial("tcp4", s.l.Addr().String())
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			return
		}
		if err != nil {
			s.t.Fatal(err)
		}
		s.filled = append(s.filled, c)
	}
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

// One of four applications stops accepting, and its queue is full, at 200 connections/s:
// what clients wait for, with the hedge and without, and with the witness's look at
// sockets and without.
func TestAFilledAcceptQueueAtTwoHundredConnectionsASecond(t *testing.T) {
	for _, arm := range []struct {
		name             string
		hedge, listeners bool
	}{
		{"neither", false, false},
		{"hedge alone", true, false},
		{"listeners alone", false, true},
		{"both", true, true},
	} {
		t.Run(arm.name, func(t *testing.T) {
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
			all := steadily(p.listen.hello, 300)
			arrived := lastArrival(t, p)
			sick.heal()

			late, failed, longest, last := 0, 0, time.Duration(0), time.Duration(0)
			for _, x := range all {
				longest = max(longest, x.took)
				switch {
				case x.err != nil:
					failed++
					t.Logf("begun %v after: %v", x.began.Sub(full), x.err)
				case x.took > 90*time.Millisecond:
					late++
					if !x.began.After(arrived) { // else the machine is slow, not the queue
						last = max(last, x.began.Sub(full))
					}
				}
			}
			took := func(q float64) time.Duration {
				slices.SortFunc(all, func(a, b said) int { return int(a.took - b.took) })
				return all[int(q*float64(len(all)-1))].took.Round(100 * time.Microsecond)
			}
			t.Logf("of %d: %d failed, %d took more than 90 ms, the last of these that can have met the queue begun %v after; median %v, p99 %v, longest %v",
				len(all), failed, late, last.Round(time.Millisecond), took(0.5), took(0.99), longest.Round(100*time.Microsecond))
			for _, result := range []string{"withdrawn", "accepted", "refused", "unanswered", "nobody", "budget"} {
				if n := p.client().Metric(t, `isthmus_hedges_total{result="`+result+`"}`); n > 0 {
					t.Logf("hedges %s: %v", result, n)
				}
			}
			if failed > 0 {
				t.Errorf("%d connections failed", failed)
			}
			if arm.hedge && arm.listeners {
				if last > 100*time.Millisecond {
					t.Errorf("a connection met the full queue that began %v after it was full", last)
				}
				if soon := leftWithin(t, p, 90*time.Millisecond); soon == 0 {
					t.Error("no call left the full queue before connecting had taken 100 ms")
				}
			}
			if p99 := took(0.99); arm.hedge && p99 > 900*time.Millisecond { // a process that is late itself tells nobody
				t.Errorf("one of a hundred took %v; want less than until the kernel asks again", p99)
			}
			if !arm.hedge && !arm.listeners && longest < 900*time.Millisecond {
				t.Errorf("the longest took %v: nobody met the full queue", longest)
			}
		})
	}
}

// busy accepts one connection each pause, and others see to it that its queue is never
// short: whoever comes is dropped now and then.
func (s *stopper) busy(pause time.Duration) (rest func()) {
	s.l.SetDeadline(time.Unix(1, 0))
	<-s.ended
	s.l.SetDeadline(time.Time{})
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
			} else {
				deep = true
			}
		}
	})
	return func() {
		close(stop)
		s.l.SetDeadline(time.Unix(1, 0))
		wg.Wait()
		s.heal()
	}
}

// One of two applications is behind all the time: its queue is deep, often full, and drains. Whoever is
// dropped goes elsewhere at once, and the application stays in.
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
	out := p.node(1).Log.Find("outlier changed", "edge", "ejected")
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
	t.Logf("of %d the busy one served %d; %v were told that it is slow, the longest took %v", len(all), served, told(), longest)
	if told() == 0 {
		t.Error("nobody met a full queue: this proves nothing")
	}
	if len(out) > 0 {
		t.Errorf("it was ejected: %v", out[0])
	}
	if served < len(all)/8 {
		t.Errorf("it served %d of %d", served, len(all))
	}
}
