//go:build linux

package wan

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/integration/fleet"
	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

var (
	overTCP  = arm{"tcp", nil}
	overQUIC = arm{"quic", []string{"ISTHMUS_LINES_TRANSPORT=quic"}}
)

// use is what the two ends of the line have used since they started.
type use struct {
	packets, bytes uint64        // on the network interface of the client's host, both directions
	wakeUps        uint64        // voluntary context switches of node proxy and gateway
	cpu            time.Duration // of node proxy and gateway
}

func (u use) minus(v use) use {
	return use{u.packets - v.packets, u.bytes - v.bytes, u.wakeUps - v.wakeUps, u.cpu - v.cpu}
}

func used(t *testing.T) (u use) {
	t.Helper()
	var devices []byte
	if err := here.In("client-ours", func() (err error) {
		devices, err = os.ReadFile("/proc/thread-self/net/dev")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(devices)) {
		name, counters, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok || name == "lo" {
			continue
		}
		var n [16]uint64
		for i, f := range strings.Fields(counters) {
			fmt.Sscan(f, &n[i])
		}
		u.bytes += n[0] + n[8]
		u.packets += n[1] + n[9]
	}
	for _, p := range []*netspace.Process{here.clients["client-ours"], here.gateway} {
		u.wakeUps += wakeUps(t, p.PID())
		cpu, err := fleet.CPUOf(p.PID())
		if err != nil {
			t.Fatal(err)
		}
		u.cpu += cpu
	}
	return u
}

func wakeUps(t *testing.T, pid int) (n uint64) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range threads {
		f, err := os.Open(name)
		if err != nil {
			continue // the thread has ended
		}
		for s := bufio.NewScanner(f); s.Scan(); {
			var x uint64
			if _, err := fmt.Sscanf(s.Text(), "voluntary_ctxt_switches: %d", &x); err == nil {
				n += x
			}
		}
		f.Close()
	}
	return n
}

// The figures of an idle connection in docs/lines.md.
func TestIdleConnectionCost(t *testing.T) {
	need(t)
	notShort(t)
	here.link.Set(busyLine(0))
	t.Cleanup(func() { set(t, withLines) })
	const during = time.Minute
	var tcp use
	for _, a := range []arm{overTCP, overQUIC} {
		set(t, a)
		without := use{}
		for _, connected := range []bool{false, true} {
			if connected {
				c, err := here.connect(double)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if _, err := who(c); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(15 * time.Second) // until PINGs have their pace at rest
			before := used(t)
			time.Sleep(during)
			u := used(t).minus(before)
			if !connected {
				without = u
				continue
			}
			u = u.minus(without)
			hours := uint64(time.Hour / during)
			t.Logf("%-5s an idle connection: %d packets, %d bytes, %d wake-ups of node proxy and gateway in an hour", a.name, u.packets*hours, u.bytes*hours, int64(u.wakeUps)*int64(hours))
			if a.name == overTCP.name {
				tcp = u
			} else if u.packets > tcp.packets*2 || u.bytes > tcp.bytes*3 { // docs/lines.md has 1.1 and 1.8 times
				t.Errorf("over QUIC an idle connection has %d packets and %d bytes, over TCP %d and %d", u.packets, u.bytes, tcp.packets, tcp.bytes)
			}
		}
	}
}

// The CPU time of small messages in docs/lines.md.
func TestMessageCost(t *testing.T) {
	need(t)
	notShort(t)
	here.link.Set(busyLine(0))
	t.Cleanup(func() { set(t, withLines) })
	for _, a := range []arm{overTCP, overQUIC} {
		set(t, a)
		var all sync.WaitGroup
		var measured, stop atomic.Bool
		var n atomic.Int64
		for range echoes {
			all.Go(func() {
				took, err := messages(double, pacedPause, &measured, &stop)
				if err != nil {
					t.Error(err)
				}
				n.Add(int64(len(took)))
			})
		}
		time.Sleep(2 * time.Second)
		measured.Store(true)
		before := used(t)
		time.Sleep(10 * time.Second)
		u := used(t).minus(before)
		stop.Store(true)
		all.Wait()
		t.Logf("%-5s %d messages of 1 KiB: %v of CPU for each and its echo, %.1f packets", a.name, n.Load(), u.cpu/time.Duration(n.Load()), float64(u.packets)/float64(n.Load()))
	}
}
