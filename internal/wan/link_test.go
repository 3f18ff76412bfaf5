package wan

import (
	"encoding/binary"
	"io"
	"math"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// device is a TAP device in memory.
type device struct {
	in     chan []byte // what Read returns
	out    chan got    // what was written
	closed chan struct{}
	once   sync.Once
}

type got struct {
	data []byte
	at   time.Time
}

func newDevice() *device {
	return &device{in: make(chan []byte), out: make(chan got, 100_000), closed: make(chan struct{})}
}

func (d *device) Read(p []byte) (int, error) {
	select {
	case f := <-d.in:
		return copy(p, f), nil
	case <-d.closed:
		return 0, os.ErrClosed
	}
}

func (d *device) Write(p []byte) (int, error) {
	select {
	case <-d.closed:
		return 0, io.ErrClosedPipe
	default:
		d.out <- got{p, time.Now()}
		return len(p), nil
	}
}

func (d *device) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

// bubble runs f with a link in a bubble of exact time.
func bubble(t *testing.T, c Conditions, f func(t *testing.T, a, b *device, l *Link)) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newDevice(), newDevice()
		l := join(a, b, c, 1, time.Sleep)
		defer l.Close() // a goroutine that is left fails the bubble
		f(t, a, b, l)
	})
}

// send puts n numbered frames on a device, one each gap, and waits until all
// that arrives has arrived.
func send(d *device, n int, gap time.Duration) {
	for i := range n {
		d.in <- binary.BigEndian.AppendUint32(nil, uint32(i))
		time.Sleep(gap)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
}

func drain(d *device) (all []got) {
	for len(d.out) > 0 {
		all = append(all, <-d.out)
	}
	return all
}

func TestEveryFrameArrivesAfterTheDelayBothWays(t *testing.T) {
	bubble(t, Conditions{Delay: 40 * time.Millisecond}, func(t *testing.T, a, b *device, l *Link) {
		l.Back.Set(Conditions{Delay: 7 * time.Millisecond})
		for _, way := range []struct {
			from, to *device
			delay    time.Duration
		}{{a, b, 40 * time.Millisecond}, {b, a, 7 * time.Millisecond}} {
			begin := time.Now()
			send(way.from, 100, time.Millisecond)
			all := drain(way.to)
			if len(all) != 100 {
				t.Fatalf("%d frames arrive, want 100", len(all))
			}
			for i, f := range all {
				if want := begin.Add(time.Duration(i)*time.Millisecond + way.delay); !f.at.Equal(want) || binary.BigEndian.Uint32(f.data) != uint32(i) {
					t.Fatalf("frame %d is %x and %v late", i, f.data, f.at.Sub(want))
				}
			}
		}
	})
}

func TestRateBoundsThroughputAndQueue(t *testing.T) {
	const rate, queue, size = 1000, 40, 4 // bytes: a frame takes 4 ms, and ten wait
	bubble(t, Conditions{Delay: 10 * time.Millisecond, Rate: rate, Queue: queue}, func(t *testing.T, a, b *device, l *Link) {
		begin := time.Now()
		send(a, 100, 0)
		all := drain(b)
		if c := l.There.Counters(); len(all) != 11 || c.Full != 89 {
			t.Errorf("of a burst of 100 frames %d arrive, want one and ten that wait: %+v", len(all), c)
		}
		for i, f := range all {
			if want := begin.Add(time.Duration(i+1)*size*time.Second/rate + 10*time.Millisecond); !f.at.Equal(want) {
				t.Errorf("frame %d arrives %v late", i, f.at.Sub(want))
			}
		}
		send(a, 100, size*time.Second/rate)
		if n := len(drain(b)); n != 100 {
			t.Errorf("%d of 100 frames arrive that come at the rate", n)
		}
	})
}

func TestJitterSpreadsAndKeepsTheOrder(t *testing.T) {
	for _, gap := range []time.Duration{time.Millisecond, 50 * time.Millisecond} { // the first wants to overtake
		bubble(t, Conditions{Delay: 10 * time.Millisecond, Jitter: 20 * time.Millisecond}, func(t *testing.T, a, b *device, l *Link) {
			begin := time.Now()
			send(a, 1000, gap)
			all := drain(b)
			if len(all) != 1000 {
				t.Fatalf("%d frames arrive, want 1000", len(all))
			}
			shortest, longest := time.Hour, time.Duration(0)
			for i, f := range all {
				if binary.BigEndian.Uint32(f.data) != uint32(i) {
					t.Fatalf("frame %x is the %dth", f.data, i)
				}
				took := f.at.Sub(begin.Add(time.Duration(i) * gap))
				shortest, longest = min(shortest, took), max(longest, took)
			}
			if shortest < 10*time.Millisecond || longest > 30*time.Millisecond {
				t.Errorf("every %v a frame: they take %v to %v, want 10 to 30 ms", gap, shortest, longest)
			}
			if gap > 20*time.Millisecond && longest-shortest < 19*time.Millisecond {
				t.Errorf("every %v a frame: they take %v to %v, want all of 10 to 30 ms", gap, shortest, longest)
			}
		})
	}
}

func TestLossIsTheShareOfFrames(t *testing.T) {
	for _, share := range []float64{0, 0.01, 0.3, 1} {
		bubble(t, Conditions{Loss: share}, func(t *testing.T, a, b *device, l *Link) {
			const n = 20_000
			send(a, n, time.Microsecond) // a pause lets deliver keep up, however slow the machine: the queue is bounded
			c := l.There.Counters()
			if c.Taken != n || c.Lost+c.Delivered != n || int(c.Delivered) != len(drain(b)) {
				t.Errorf("counters are %+v, want %d taken, the others lost", c, n)
			}
			// Five standard deviations of a binomial.
			if off := math.Abs(float64(c.Lost)/n - share); off > 5*math.Sqrt(share*(1-share)/n) {
				t.Errorf("%d of %d frames are lost, want a share of %v", c.Lost, n, share)
			}
		})
	}
}

func TestLargePacketsAreLost(t *testing.T) {
	bubble(t, Conditions{Most: 1300}, func(t *testing.T, a, b *device, l *Link) {
		for _, packet := range []int{20, 1300, 1301, 1500} {
			a.in <- make([]byte, packet+etherHeader)
		}
		synctest.Wait()
		for _, want := range []int{20, 1300} {
			if got := <-b.out; len(got.data) != want+etherHeader {
				t.Errorf("a frame of %d bytes arrives, want %d", len(got.data), want+etherHeader)
			}
		}
		if c := l.There.Counters(); c.Large != 2 || c.Delivered != 2 {
			t.Errorf("%+v, want 2 delivered and 2 too large", c)
		}
	})
}

func TestNoUDPDropsUDPAlone(t *testing.T) {
	frame := func(etherType uint16, protocolAt int, protocol byte) []byte {
		b := make([]byte, etherHeader+40)
		binary.BigEndian.PutUint16(b[12:], etherType)
		b[etherHeader+protocolAt] = protocol
		return b
	}
	const tcp, udp = 6, 17
	bubble(t, Conditions{NoUDP: true}, func(t *testing.T, a, b *device, l *Link) {
		for name, f := range map[string]struct {
			data  []byte
			drops bool
		}{
			"IPv4 UDP":           {frame(0x0800, 9, udp), true},
			"IPv4 TCP":           {frame(0x0800, 9, tcp), false},
			"IPv6 UDP":           {frame(0x86dd, 6, udp), true},
			"IPv6 TCP":           {frame(0x86dd, 6, tcp), false},
			"ARP":                {frame(0x0806, 9, udp), false},
			"less than a header": {frame(0x0800, 9, udp)[:etherHeader+9], false},
		} {
			a.in <- f.data
			synctest.Wait()
			if got := len(drain(b)); (got == 0) != f.drops {
				t.Errorf("%s: %d frames arrive, dropped should be %t", name, got, f.drops)
			}
		}
		if c := l.There.Counters(); c.Lost != 2 {
			t.Errorf("%+v, want 2 lost", c)
		}
	})
}

func TestUDPRateDropsExcessUDP(t *testing.T) {
	udp := make([]byte, 1000)
	binary.BigEndian.PutUint16(udp[12:], 0x0800)
	udp[etherHeader+9] = 17
	tcp := append([]byte(nil), udp...)
	tcp[etherHeader+9] = 6
	bubble(t, Conditions{UDPRate: 10_000}, func(t *testing.T, a, b *device, l *Link) {
		for second := range 4 {
			for range 100 {
				a.in <- udp
				a.in <- tcp
				time.Sleep(10 * time.Millisecond)
			}
			synctest.Wait()
			var passed int
			for _, f := range drain(b) {
				if isUDP(f.data) {
					passed++
				}
			}
			want := 10 // of 1000 bytes in a second
			if second == 0 {
				want = 12 // a burst of a quarter of a second
			}
			if passed < want || passed > want+1 {
				t.Errorf("second %d: %d frames of UDP arrive, want %d", second, passed, want)
			}
		}
		if c := l.There.Counters(); c.Delivered-uint64(4*100) > 44 || c.Full > 0 {
			t.Errorf("%+v, want all TCP delivered", c)
		}
	})
}

func TestCutDropsEverythingOneWayAndHeals(t *testing.T) {
	bubble(t, Conditions{Delay: time.Second}, func(t *testing.T, a, b *device, l *Link) {
		a.in <- []byte("under way")
		time.Sleep(time.Second / 2)
		l.There.Set(Conditions{Cut: true})
		send(a, 10, 0)
		send(b, 10, 0)
		if there, back := len(drain(b)), len(drain(a)); there != 0 || back != 10 {
			t.Errorf("%d frames arrive on the way that is cut, want none, and %d on the other, want 10", there, back)
		}
		if c := l.There.Counters(); c.Cut != 11 {
			t.Errorf("counters are %+v, want 11 cut", c)
		}
		l.Set(Conditions{})
		send(a, 10, 0)
		if n := len(drain(b)); n != 10 {
			t.Errorf("%d frames arrive after the cut, want 10", n)
		}
	})
}

func TestFullQueueDropsTheNewest(t *testing.T) {
	bubble(t, Conditions{Delay: time.Second}, func(t *testing.T, a, b *device, l *Link) {
		a.in <- []byte("in the hands of deliver")
		synctest.Wait()
		send(a, queueFrames+99, 0)
		all := drain(b)
		if c := l.There.Counters(); c.Full != 99 || len(all) != queueFrames+1 {
			t.Fatalf("%d frames arrive, counters %+v, want %d and 99 dropped", len(all), c, queueFrames+1)
		}
		if last := binary.BigEndian.Uint32(all[queueFrames].data); last != queueFrames-1 {
			t.Errorf("the last frame is %d, want %d: the newest are dropped", last, queueFrames-1)
		}
	})
}

func TestDeviceThatRefusesIsCounted(t *testing.T) {
	bubble(t, Conditions{}, func(t *testing.T, a, b *device, l *Link) {
		b.Close()
		send(a, 3, 0)
		if c := l.There.Counters(); c.Failed != 3 {
			t.Errorf("counters are %+v, want 3 failed", c)
		}
	})
}
