// Package wan joins two layer-2 segments in user space, like a long line between two sites: with delay, jitter, rate, loss
// and cuts. Each way has its own conditions, which can change while the link runs. It is for kernels without netem, for
// tests, benchmarks and drills.
//
// A link keeps the order of frames. It looks into them for [Conditions.NoUDP] and [Conditions.UDPRate] alone.
package wan

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Conditions describe one way. The zero value forwards at once and everything.
type Conditions struct {
	Delay  time.Duration // of every frame
	Rate   int           // bytes per second; 0: unbounded
	Queue  int           // bytes that wait for Rate at most; frames beyond are dropped
	Jitter time.Duration // added to it, drawn evenly from [0, Jitter]; a frame that would overtake waits for the one before
	Loss   float64       // share of frames that are lost, each by itself, in [0, 1]
	Cut    bool          // nothing arrives, also not what is under way
	Most   int           // largest IP packet that arrives, in bytes; larger ones are lost without an ICMP error. Zero: all
	NoUDP  bool          // packets of UDP are lost
	// UDPRate limits UDP, in bytes per second, and drops what is above it, like a firewall. A burst of a quarter of a
	// second passes. Zero: no limit.
	UDPRate int
}

// Counters count the frames of one way since the beginning. Lost, Large, Full, Cut and
// Failed are those that will not arrive.
type Counters struct {
	Taken, Delivered uint64
	Lost             uint64 // by Conditions.Loss, NoUDP and UDPRate
	Large            uint64 // by Conditions.Most
	Full             uint64 // dropped since a queue was full
	Cut              uint64
	Failed           uint64 // the device did not take it
}

// queueFrames bounds what is under way on one way: 16 MiB of full frames, more
// than 1 Gbit/s needs for 100 ms.
const queueFrames = 11_000

// frameBytes is the longest frame: an interface's MTU of 1500 with headers, and
// room for jumbo frames.
const frameBytes = 10_000

const etherHeader = 14 // bytes of a frame before its packet

// Link is a running link of two ways. Its methods and those of its ways may be
// called at the same time.
type Link struct {
	There *Way // from the first device to the second
	Back  *Way // from the second to the first

	devices [2]io.Closer
	all     sync.WaitGroup
}

// Join forwards frames between two devices, both ways under the same
// conditions, until Close. One Read or Write of a device is one frame, as with
// TAP devices; the link owns them. The seed makes loss and jitter repeatable.
func Join(a, b io.ReadWriteCloser, c Conditions, seed uint64) *Link {
	return join(a, b, c, seed, sleep)
}

func join(a, b io.ReadWriteCloser, c Conditions, seed uint64, sleep func(time.Duration)) *Link {
	l := &Link{There: newWay(a, b, seed, 0), Back: newWay(b, a, seed, 1), devices: [2]io.Closer{a, b}}
	l.Set(c)
	for _, w := range []*Way{l.There, l.Back} {
		l.all.Go(w.take)
		l.all.Go(func() { w.deliver(sleep) })
	}
	return l
}

// Set changes the conditions of both ways, for frames that come from now on. A
// cut also meets what is under way.
func (l *Link) Set(c Conditions) {
	l.There.Set(c)
	l.Back.Set(c)
}

// Close ends the link and closes its devices. It returns when nothing of it
// runs, at most one delay later.
func (l *Link) Close() {
	for _, d := range l.devices {
		d.Close()
	}
	l.all.Wait()
}

// Way is one direction of a link. Two goroutines work for it: take reads frames
// and says when they are due, deliver waits and writes them.
type Way struct {
	from       io.Reader
	to         io.Writer
	random     *rand.Rand // of take
	conditions atomic.Pointer[Conditions]
	queue      chan frame // from take to deliver, in the order of due; take closes it

	taken, delivered, lost, large, full, cut, failed atomic.Uint64
}

type frame struct {
	due  time.Time
	data []byte
}

func newWay(from io.Reader, to io.Writer, seed, stream uint64) *Way {
	return &Way{from: from, to: to, random: rand.New(rand.NewPCG(seed, stream)), queue: make(chan frame, queueFrames)}
}

// Set changes the conditions of this way; see Link.Set.
func (w *Way) Set(c Conditions) { w.conditions.Store(&c) }

// Conditions are those that hold now.
func (w *Way) Conditions() Conditions { return *w.conditions.Load() }

// Counters are what was counted so far.
func (w *Way) Counters() Counters {
	return Counters{
		Taken: w.taken.Load(), Delivered: w.delivered.Load(),
		Lost: w.lost.Load(), Large: w.large.Load(), Full: w.full.Load(), Cut: w.cut.Load(), Failed: w.failed.Load(),
	}
}

// take reads frames until the device is closed.
func (w *Way) take() {
	defer close(w.queue)
	var last, free time.Time // due of the frame before; when Rate has sent it
	var udp time.Time        // when UDPRate has sent the last frame of UDP
	buffer := make([]byte, frameBytes)
	for {
		n, err := w.from.Read(buffer)
		if err != nil {
			return
		}
		w.taken.Add(1)
		c := w.conditions.Load()
		switch {
		case c.Cut:
			w.cut.Add(1)
			continue
		case c.Loss > 0 && w.random.Float64() < c.Loss, c.NoUDP && isUDP(buffer[:n]):
			w.lost.Add(1)
			continue
		case c.Most > 0 && n > c.Most+etherHeader:
			w.large.Add(1)
			continue
		}
		due := time.Now()
		if c.UDPRate > 0 && isUDP(buffer[:n]) {
			if udp = later(udp, due.Add(-udpBurst)); udp.After(due) {
				w.lost.Add(1)
				continue
			}
			udp = udp.Add(time.Duration(n) * time.Second / time.Duration(c.UDPRate))
		}
		if c.Rate > 0 {
			waiting := max(0, free.Sub(due))
			if waiting.Seconds()*float64(c.Rate) > float64(c.Queue) {
				w.full.Add(1)
				continue
			}
			free = due.Add(waiting + time.Duration(n)*time.Second/time.Duration(c.Rate))
			due = free
		}
		due = due.Add(c.Delay + w.jitter(c.Jitter))
		if due.Before(last) {
			due = last
		}
		select {
		case w.queue <- frame{due, append([]byte(nil), buffer[:n]...)}:
			last = due
		default:
			w.full.Add(1)
		}
	}
}

// udpBurst is how much UDPRate lets pass at once, as the time it takes at that rate.
const udpBurst = 250 * time.Millisecond

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// isUDP reports whether a frame has an IP packet of UDP. IPv6 packets with extension headers are not recognized.
func isUDP(frame []byte) bool {
	const udp = 17
	switch {
	case len(frame) < etherHeader+20:
		return false
	case binary.BigEndian.Uint16(frame[12:]) == 0x0800:
		return frame[etherHeader+9] == udp
	}
	return binary.BigEndian.Uint16(frame[12:]) == 0x86dd && frame[etherHeader+6] == udp
}

func (w *Way) jitter(most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	return time.Duration(w.random.Int64N(int64(most) + 1))
}

// deliver writes each frame when it is due. When it is late, it makes up for it.
func (w *Way) deliver(sleep func(time.Duration)) {
	for f := range w.queue {
		if wait := time.Until(f.due); wait > 0 {
			sleep(wait)
		}
		if w.conditions.Load().Cut {
			w.cut.Add(1)
		} else if _, err := w.to.Write(f.data); err != nil {
			w.failed.Add(1)
		} else {
			w.delivered.Add(1)
		}
	}
}
