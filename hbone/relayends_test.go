package hbone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	endsSeeds    = 24
	endsConns    = 6
	endsPatience = 300 * time.Millisecond          // of one who writes
	endsWithin   = lastWordsWithin + 5*time.Second // of a relay, once both applications are closed
)

// endsApp is an application at one end of a relayed connection, and what it did. Its
// writer and its reader run at the same time; say is what they do.
type endsApp struct {
	c    *net.TCPConn
	salt int

	wrote    int
	ended    bool  // said FIN, by CloseWrite or by a Close with nothing unread
	broke    bool  // reset its connection, or closed it in a way that may do so
	whole    bool  // all that it wrote and its FIN had left its kernel before it did so
	writeErr error // nil if all was written

	read    int
	readErr error // io.EOF, or another
	stopped bool  // of its own will, before an end
}

func endsByte(salt, at int) byte { return byte(salt + at + at>>8) }

func (a *endsApp) write(n int) {
	b := make([]byte, n)
	for i := range b {
		b[i] = endsByte(a.salt, a.wrote+i)
	}
	a.c.SetWriteDeadline(time.Now().Add(endsPatience))
	n, a.writeErr = a.c.Write(b)
	a.wrote += n
}

// speak writes and ends as rng has it.
func (a *endsApp) speak(rng *rand.Rand) {
	for range rng.IntN(5) {
		n := 1 + rng.IntN(4<<10)
		if rng.IntN(4) == 0 {
			n = 1 + rng.IntN(600<<10)
		}
		if a.write(n); a.writeErr != nil {
			break
		}
		if rng.IntN(3) == 0 {
			time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
		}
	}
	switch last := []string{"end", "end", "end", "reset", "close", "end and reset", "end, then reset"}[rng.IntN(7)]; {
	case a.writeErr != nil:
	case last == "end":
		a.ended = a.c.CloseWrite() == nil
	case last == "reset":
		a.broke = true
		a.c.SetLinger(0)
		a.c.Close()
	case last == "end and reset", last == "end, then reset":
		a.broke = true
		a.ended = a.c.CloseWrite() == nil
		a.whole = a.ended && a.wrote < 16<<10 // less than any window
		for end := time.Now().Add(endsPatience); last == "end, then reset" && !a.whole && time.Now().Before(end); time.Sleep(time.Millisecond) {
			a.whole = a.ended && a.finTaken()
		}
		a.c.SetLinger(0)
		a.c.Close()
	case last == "close":
		a.broke = true
		a.ended = true // unless something is unread, which a reader that goes on decides
		a.c.Close()
	}
}

// finTaken reports whether all that a has written, and its FIN, was acknowledged.
func (a *endsApp) finTaken() (taken bool) {
	raw, err := a.c.SyscallConn()
	if err != nil {
		return false
	}
	raw.Control(func(fd uintptr) {
		state, ok := socket{raw: raw}.state(fd)
		taken = ok && state == unix.BPF_TCP_FIN_WAIT2
	})
	return taken
}

// close closes what nobody reads any more: with bytes unread that is a reset.
func (a *endsApp) close() {
	raw, err := a.c.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		unread, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ)
		a.ended = a.ended || unread == 0 && err == nil
	})
	a.whole = a.whole || a.finTaken()
	a.c.Close()
}

// listen reads until the end, or until it has had enough.
func (a *endsApp) listen(rng *rand.Rand, from *endsApp) error {
	enough := -1
	if rng.IntN(4) == 0 {
		enough = rng.IntN(100 << 10)
	}
	buf := make([]byte, 1+rng.IntN(32<<10))
	for enough < 0 || a.read < enough {
		n, err := a.c.Read(buf)
		for i, b := range buf[:n] {
			if b != endsByte(from.salt, a.read+i) {
				return fmt.Errorf("byte %d is not what was written", a.read+i)
			}
		}
		if a.read += n; err != nil {
			a.readErr = err
			return nil
		}
	}
	a.stopped = true
	return nil
}

// heard compares what a has read with what from did. undisturbed: nobody but from ended
// anything early.
func (a *endsApp) heard(from *endsApp, undisturbed bool) error {
	wasReset := errors.Is(a.writeErr, syscall.ECONNRESET) || errors.Is(a.writeErr, syscall.EPIPE) // the kernel tells of it once
	switch {
	case a.read > from.wrote:
		return fmt.Errorf("%d bytes were read of %d that were written", a.read, from.wrote)
	case a.readErr == io.EOF && !from.ended && !wasReset:
		return fmt.Errorf("read the end behind %d bytes of one that has not ended in order", a.read)
	case a.readErr == io.EOF && a.read < from.wrote && !wasReset:
		return fmt.Errorf("read the end behind %d of %d bytes", a.read, from.wrote)
	case undisturbed && !from.broke && !from.stopped && !a.stopped && !a.broke && (a.readErr != io.EOF || a.read < from.wrote):
		return fmt.Errorf("read %d of %d bytes and %v, of one that has ended in order", a.read, from.wrote, a.readErr)
	case undisturbed && from.whole && !a.stopped && !a.broke && (a.readErr != io.EOF || a.read < from.wrote):
		return fmt.Errorf("read %d of %d bytes and %v, of one that had ended in order before it was closed", a.read, from.wrote, a.readErr)
	case undisturbed && from.broke && !from.stopped && !a.stopped && !a.broke && from.wrote < 16<<10 && a.read < from.wrote:
		return fmt.Errorf("read %d of the %d bytes that were said before the reset, and %v", a.read, from.wrote, a.readErr)
	}
	return nil
}

// endsWorld is the relays of one seed.
type endsWorld struct {
	rng      *rand.Rand
	sessions []*rig
	relays   sync.WaitGroup
	apps     chan *net.TCPConn
}

func newEndsWorld(t testing.TB, seed uint64) *endsWorld {
	w := &endsWorld{rng: rand.New(rand.NewPCG(seed, 2)), apps: make(chan *net.TCPConn, endsConns)}
	var cfg Config
	cfg.CancelEnds = w.rng.IntN(2) == 0
	handler := func(ctx context.Context, in *Incoming) {
		a, b := tcpPair(t)
		w.relays.Add(1)
		defer w.relays.Done()
		st, err := in.Accept(nil)
		if err != nil {
			a.Close()
			b.Close()
			return
		}
		w.apps <- b.(*net.TCPConn)
		Relay(ctx, st, a)
	}
	w.sessions = []*rig{newRig(t, rigConfig{client: cfg, server: cfg, handler: handler})}
	if w.rng.IntN(3) == 0 { // a relay of streams in between
		back := w.sessions[0].client
		w.sessions = append(w.sessions, newRig(t, rigConfig{client: cfg, server: cfg, handler: func(ctx context.Context, in *Incoming) {
			w.relays.Add(1)
			defer w.relays.Done()
			next := open(t, back)
			st, err := in.Accept(nil)
			if err != nil {
				next.Reset(8)
				return
			}
			Relay(ctx, st, next)
		}}))
	}
	return w
}

// connection runs one connection to its end, in the calling goroutine.
func (w *endsWorld) connection(ctx context.Context, client, app *net.TCPConn, seed uint64) (a, b *endsApp, err error) {
	ends := [2]*endsApp{{c: client, salt: 3}, {c: app, salt: 101}}
	var wg sync.WaitGroup
	var errs [2]error
	for i, e := range ends {
		wg.Go(func() {
			var both sync.WaitGroup
			both.Go(func() { e.speak(rand.New(rand.NewPCG(seed, uint64(10+i)))) })
			both.Go(func() {
				errs[i] = e.listen(rand.New(rand.NewPCG(seed, uint64(20+i))), ends[1-i])
			})
			both.Wait()
			e.close()
		})
	}
	wg.Wait()
	return ends[0], ends[1], errors.Join(errs[:]...)
}

// TestRelaysEndAsConnectionsDo lets applications at both ends of relays write, end,
// reset and leave as a seed has it, ends relays and sessions under them, and compares
// with what a TCP connection may show. SEED=17 runs that one alone, SEEDS=1000 more.
func TestRelaysEndAsConnectionsDo(t *testing.T) {
	first, n := uint64(1), uint64(endsSeeds)
	if v, err := strconv.ParseUint(os.Getenv("SEEDS"), 10, 64); err == nil {
		n = v
	}
	if v, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		first, n = v, 1
	}
	before := runtime.NumGoroutine()
	t.Run("seeds", func(t *testing.T) {
		for seed := first; seed < first+n; seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				relayEnds(t, seed)
			})
		}
	})
	eventually(t, fmt.Sprintf("as few goroutines as the %d before", before), func() bool { return runtime.NumGoroutine() <= before })
}

func relayEnds(t *testing.T, seed uint64) {
	w := newEndsWorld(t, seed)
	front := w.sessions[len(w.sessions)-1]
	lost := w.rng.IntN(6) == 0
	var conns sync.WaitGroup
	for i := range endsConns {
		a, b := tcpPair(t)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		cut := w.rng.IntN(6) == 0
		st := open(t, front.client)
		w.relays.Go(func() { Relay(ctx, st, b) })
		app := <-w.apps
		if wait := w.rng.IntN(4000); cut {
			time.AfterFunc(time.Duration(wait)*time.Microsecond, cancel)
		}
		conns.Go(func() {
			x, y, err := w.connection(ctx, a.(*net.TCPConn), app, seed<<8+uint64(i))
			undisturbed := !cut && !lost
			for _, err := range []error{err, at("server", y.heard(x, undisturbed && !y.broke)), at("client", x.heard(y, undisturbed && !x.broke))} {
				if err != nil {
					t.Errorf("seed %d, connection %d, cut %v, lost %v, %d hops: %v\nclient %+v\nserver %+v", seed, i, cut, lost, len(w.sessions), err, x, y)
				}
			}
		})
	}
	if lost {
		time.Sleep(time.Duration(w.rng.IntN(5000)) * time.Microsecond)
		r := w.sessions[w.rng.IntN(len(w.sessions))]
		r.server.t.Close()
	}
	within(t, "applications that have an end", 2*endsWithin, &conns)
	within(t, "relays that have ended", endsWithin, &w.relays)
	for _, r := range w.sessions {
		if lost {
			eventually(t, "no streams", func() bool { return r.client.Streams()+r.server.Streams() == 0 })
		} else {
			r.asBefore(t)
		}
	}
}

func at(side string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the application of the %s: %w", side, err)
}

func within(t *testing.T, what string, limit time.Duration, wg *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(limit):
		buf := make([]byte, 1<<20)
		stacks := string(buf[:runtime.Stack(buf, true)])
		if i := strings.LastIndex(stacks[:min(len(stacks), 60_000)], "\n\n"); i > 0 {
			stacks = stacks[:i]
		}
		t.Fatalf("not within %v: %s\n%s", limit, what, stacks)
	}
}
