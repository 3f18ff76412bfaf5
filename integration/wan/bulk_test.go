//go:build linux

package wan

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
	"github.com/isthmus-mesh/isthmus/internal/wan"
)

// A transfer of one client beside small messages of the same client.
const (
	echoes   = 64              // connections that send 1 KiB and wait for it, again and again
	echoSize = 1 << 10         // bytes
	bulkFor  = 8 * time.Second // how long the transfer is measured

	busyPause  = 10 * time.Millisecond // between the messages of a connection
	pacedPause = 50 * time.Millisecond
)

// busyLine is one of 100 Mbit/s with a round trip of 40 ms.
func busyLine(loss float64) wan.Conditions {
	return wan.Conditions{Delay: 20 * time.Millisecond, Rate: 100e6 / 8, Queue: 500_000, Loss: loss}
}

// arm is one way to set up the processes at both ends of the line.
type arm struct {
	name string
	env  []string
}

// beforeLines is what all connections had before there was a section lines.
var beforeLines = arm{"before", []string{"ISTHMUS_LINES_CONGESTION_CONTROL=host", "ISTHMUS_LINES_UNSENT_BYTES=0", "ISTHMUS_LINES_USER_TIMEOUT=0", "ISTHMUS_DISABLE=bulk-apart"}}
var withLines = arm{"now", nil}

// besideBulk is the result of a transfer and of the messages beside it.
type besideBulk struct {
	bulk          float64       // Mbit/s that arrived
	messages      int           // that were measured
	p50, p90, p99 time.Duration // of a message and its echo
	failed        int           // connections
}

func (b besideBulk) String() string {
	ms := time.Millisecond
	return fmt.Sprintf("%.1f Mbit/s beside %d echoes of %v (p50), %v (p90), %v (p99), %d failed", b.bulk, b.messages, b.p50.Round(ms), b.p90.Round(ms), b.p99.Round(ms), b.failed)
}

// congestion sets the default congestion control of both ends of the line to the first that network namespaces may have.
// Not each kernel allows cubic there; reno goes by loss alone as well.
func congestion(t *testing.T, algorithms ...string) {
	t.Helper()
	const path = "/proc/sys/net/ipv4/tcp_congestion_control"
	for _, host := range []string{"client-ours", "gateway"} {
		var err error
		for _, a := range algorithms {
			if err = here.In(host, func() error { return os.WriteFile(path, []byte(a), 0o644) }); err == nil {
				t.Logf("%s: default congestion control %s", host, a)
				break
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// set starts the node proxy and the gateway at the ends of the line again, as an arm has them.
func set(t *testing.T, a arm) {
	t.Helper()
	for _, p := range []struct {
		process *netspace.Process
		ready   func() error
	}{{here.gateway, here.Ready("gateway", admin)}, {here.clients["client-ours"], here.ready("client-ours")}} {
		if err := p.process.Stop(os.Kill, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		p.process.Env = a.env
		if err := here.Start(p.process, p.ready); err != nil {
			t.Fatal(err)
		}
	}
}

// transfer sends as much as it can for a while, and returns how many bytes arrived. done is closed when it ends.
func transfer(p path, during time.Duration) (bytes uint64, err error) {
	c, err := here.connectFor(p, sink)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if _, err := who(c); err != nil {
		return 0, err
	}
	end := time.Now().Add(during)
	c.SetDeadline(end.Add(2 * time.Minute))
	piece := make([]byte, 64<<10)
	for time.Now().Before(end) {
		if _, err := c.Write(piece); err != nil {
			return 0, err
		}
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return 0, err
	}
	var n [8]byte
	_, err = io.ReadFull(c, n[:])
	return binary.BigEndian.Uint64(n[:]), err
}

// messages sends messages on one connection with pauses between them until stop, and returns how long each took that began
// while measured.
func messages(p path, pause time.Duration, measured, stop *atomic.Bool) (took []time.Duration, err error) {
	c, err := here.connect(p)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if _, err := who(c); err != nil {
		return nil, err
	}
	message := make([]byte, echoSize)
	for !stop.Load() {
		c.SetDeadline(time.Now().Add(2 * time.Minute))
		begin, counts := time.Now(), measured.Load()
		if _, err := c.Write(message); err != nil {
			return took, err
		}
		if _, err := io.ReadFull(c, message); err != nil {
			return took, err
		}
		if counts {
			took = append(took, time.Since(begin))
		}
		time.Sleep(pause)
	}
	return took, nil
}

// measure runs a transfer beside messages. An earlier transfer has ended when the messages begin.
func measure(t *testing.T, bulk, small path, pause time.Duration) (b besideBulk) {
	t.Helper()
	if _, err := transfer(bulk, time.Second); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	var all sync.WaitGroup
	var mu sync.Mutex
	var measured, stop atomic.Bool
	var took []time.Duration
	for range echoes {
		all.Go(func() {
			d, err := messages(small, pause, &measured, &stop)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, d...)
			if err != nil {
				b.failed++
			}
		})
	}
	time.Sleep(2 * time.Second)
	measured.Store(true)
	begin := time.Now()
	bytes, err := transfer(bulk, bulkFor)
	if err != nil {
		t.Fatal(err)
	}
	b.bulk = float64(bytes) * 8e-6 / time.Since(begin).Seconds()
	stop.Store(true)
	all.Wait()
	slices.Sort(took)
	if len(took) == 0 {
		t.Fatal("no message had an echo")
	}
	b.messages, b.p50, b.p90, b.p99 = len(took), took[len(took)/2], took[len(took)*9/10], took[len(took)*99/100]
	return b
}

// losses returns what the variable WAN_LOSS has, separated by commas, or else all.
func losses(t *testing.T, all ...float64) (list []float64) {
	t.Helper()
	s := os.Getenv("WAN_LOSS")
	if s == "" {
		return all
	}
	for f := range strings.SplitSeq(s, ",") {
		var x float64
		if _, err := fmt.Sscan(f, &x); err != nil {
			t.Fatalf("WAN_LOSS=%s: %v", s, err)
		}
		list = append(list, x)
	}
	return list
}

// The figures of docs/lines.md, in ratios of two ways to set up the same processes on the same line.
func TestSmallMessagesBesideBulk(t *testing.T) {
	need(t)
	notShort(t)
	t.Cleanup(func() { congestion(t, "bbr"); set(t, withLines) })
	for _, algorithms := range [][]string{{"cubic", "reno"}, {"bbr"}} {
		for _, loss := range losses(t, 0, 0.001, 0.01, 0.03) {
			t.Run(fmt.Sprintf("%s hosts, loss %g", algorithms[0], loss), func(t *testing.T) {
				congestion(t, algorithms...)
				here.link.Set(busyLine(loss))
				defer here.link.Set(line)
				var was besideBulk
				for _, a := range []arm{beforeLines, withLines} {
					set(t, a)
					b := measure(t, double, double, busyPause)
					t.Logf("%-6s %v", a.name, b)
					if b.failed > 0 {
						t.Errorf("%s: %d connections failed", a.name, b.failed)
					}
					if a.name == beforeLines.name {
						was = b
					} else {
						bulk, p99 := b.bulk/was.bulk, b.p99.Seconds()/was.p99.Seconds()
						t.Logf("ratio: bulk %.2f, p99 %.3f", bulk, p99)
						least, most := 0.85, 1.25 // what two runs differ in
						if loss > 0 && algorithms[0] != "bbr" {
							least, most = 3, 0.5
						}
						if bulk < least || p99 > most {
							t.Errorf("bulk is %.2f of before, want %g or more; p99 is %.2f, want %g or less", bulk, least, p99, most)
						}
					}
				}
			})
		}
	}
}
