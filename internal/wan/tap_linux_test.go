package wan_test

import (
	"encoding/binary"
	"net"
	"os"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
	"github.com/isthmus-mesh/isthmus/internal/wan"
)

const (
	delay = 40 * time.Millisecond
	reply = "10.71.2.2:7"
)

// joined makes two hosts on two segments, an echo on the one in the west, and a
// link between them. It returns a socket in the east that is connected to it.
func joined(t *testing.T) (*wan.Link, net.Conn) {
	t.Helper()
	netspace.NeedRoot(t)
	s, err := netspace.New("wan")
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err == nil {
		err = s.Segment("east", map[string][]string{"client": {"10.71.1.2"}})
	}
	if err == nil {
		err = s.Segment("west", map[string][]string{"server": {"10.71.2.2"}})
	}
	var taps [2]*os.File
	for i, segment := range []string{"east", "west"} {
		if err == nil {
			taps[i], err = s.Tap(segment)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	l := wan.Join(taps[0], taps[1], wan.Conditions{}, 1)
	t.Cleanup(l.Close)
	echo, err := s.ListenPacket("server", reply)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { echo.Close() })
	go answer(echo)
	var c net.Conn
	if err := s.In("client", func() (err error) {
		c, err = net.Dial("udp", reply)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := ping(c, 1, 5*time.Second); err != nil { // and ARP
		t.Fatal(err)
	}
	return l, c
}

func answer(c net.PacketConn) {
	p := make([]byte, 100)
	for {
		n, from, err := c.ReadFrom(p)
		if err != nil {
			return
		}
		c.WriteTo(p[:n], from)
	}
}

// ping returns how long an echo takes; earlier ones that come late are ignored.
func ping(c net.Conn, number uint32, within time.Duration) (time.Duration, error) {
	return awaitEcho(c, number, within, false)
}

// awaitEcho is ping, or the wait of one that was sent.
func awaitEcho(c net.Conn, number uint32, within time.Duration, sent bool) (time.Duration, error) {
	begin := time.Now()
	c.SetDeadline(begin.Add(within))
	if !sent {
		if _, err := c.Write(binary.BigEndian.AppendUint32(nil, number)); err != nil {
			return 0, err
		}
	}
	for p := make([]byte, 100); ; {
		n, err := c.Read(p)
		if err != nil {
			return 0, err
		}
		if n == 4 && binary.BigEndian.Uint32(p) == number {
			return time.Since(begin), nil
		}
	}
}

// An echo takes at least the delay of both ways. What a busy machine adds is unbounded, so
// TestEveryFrameArrivesAfterTheDelayBothWays checks exact times on a simulated clock.
func TestEchoTakesTwoDelays(t *testing.T) {
	l, c := joined(t)
	l.Set(wan.Conditions{Delay: delay})
	for i := range uint32(25) {
		took, err := ping(c, 100+i, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if took < 2*delay {
			t.Errorf("with a delay of %v each way an echo took %v", delay, took)
		}
	}
}

func TestLossTakesItsShareOfEchoes(t *testing.T) {
	l, c := joined(t)
	l.There.Set(wan.Conditions{Loss: 0.5})
	before := l.There.Counters()
	came := 0
	const n = 100
	for i := range uint32(n) {
		lost := l.There.Counters().Lost
		for wait := 25 * time.Millisecond; ; wait *= 2 { // an echo of a busy machine is late, and not lost
			_, err := awaitEcho(c, 1000+i, wait, wait > 25*time.Millisecond)
			if err == nil {
				came++
			}
			if err == nil || l.There.Counters().Lost > lost || wait > 10*time.Second {
				break
			}
		}
	}
	after := l.There.Counters()
	// Five standard deviations of a binomial.
	if lost := after.Lost - before.Lost; lost < n/2-25 || came < n/4 || came > n/2+25 {
		t.Errorf("half is lost: %d of %d echoes come, %d frames are lost", came, n, lost)
	}
}

func TestCutSilencesAndHeals(t *testing.T) {
	l, c := joined(t)
	for _, way := range []*wan.Way{l.There, l.Back} {
		way.Set(wan.Conditions{Cut: true})
		for wait := 200 * time.Millisecond; ; wait *= 2 { // a busy machine is late to send it
			if _, err := awaitEcho(c, 7, wait, wait > 200*time.Millisecond); err == nil {
				t.Fatal("an echo comes through a cut")
			}
			if way.Counters().Cut > 0 {
				break
			}
			if wait > 10*time.Second {
				t.Fatal("the cut met no frame")
			}
		}
		way.Set(wan.Conditions{})
		if _, err := ping(c, 8, 5*time.Second); err != nil {
			t.Errorf("after the cut: %v", err)
		}
	}
}
