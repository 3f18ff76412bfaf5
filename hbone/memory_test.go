package hbone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/memory"
)

// bufferedBytes is what the receive queues of s hold, in whole chunks.
func (s *Session) bufferedBytes() (n int) {
	s.mu.Lock()
	streams := make([]*Stream, 0, len(s.streams))
	for _, st := range s.streams {
		streams = append(streams, st)
	}
	s.mu.Unlock()
	for _, st := range streams {
		st.recv.mu.Lock()
		for c := st.recv.queue.head; c != nil; c = c.next {
			n += len(c.b)
		}
		st.recv.mu.Unlock()
	}
	return n
}

// blast sends n bytes and an end on st.
func blast(st *Stream, n int) error {
	p := make([]byte, 64<<10)
	for n > 0 {
		k, err := st.Write(p[:min(n, len(p))])
		if n -= k; err != nil {
			return err
		}
	}
	return st.CloseWrite()
}

// flood is a session on which one end does not read what the other one sends.
type flood struct {
	rig    *rig
	reader *Session  // that does not read
	unread []*Stream // its streams
	sent   sync.WaitGroup
}

// newFlood opens streams of which each sends size bytes: up to the server, or down.
func newFlood(t *testing.T, b *memory.Budget, owner string, up bool, streams, size int) *flood {
	f := &flood{}
	accepted := make(chan *Stream, streams)
	client, server := DefaultConfig(), DefaultConfig()
	client.MaxStreams = 0
	if up {
		server.Memory, server.Owner = b, owner
	} else {
		client.Memory, client.Owner = b, owner
	}
	f.rig = newRig(t, rigConfig{client: client, server: server, handler: func(ctx context.Context, in *Incoming) {
		st, err := in.Accept(nil)
		if err != nil {
			return
		}
		if up {
			accepted <- st
			<-ctx.Done()
			return
		}
		blast(st, size)
		<-ctx.Done()
	}})
	f.reader = f.rig.client
	if up {
		f.reader = f.rig.server
	}
	for range streams {
		st := open(t, f.rig.client)
		if up {
			f.sent.Go(func() {
				if blast(st, size) != nil {
					st.Close()
				}
			})
			f.unread = append(f.unread, <-accepted)
			continue
		}
		f.unread = append(f.unread, st)
	}
	return f
}

// Streams that are not read, whichever side sends and however many they are, hold no
// more than the budget. Another owner's streams go on meanwhile and are not reset. When
// the others are read at last each ends: with all of its bytes, or with ErrMemory.
func TestMemoryBudgetBoundsUnreadStreams(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			b := memory.NewBudget(int64(2+rng.IntN(5)) << 20)
			streams, size := 40+rng.IntN(120), 128<<10+rng.IntN(1<<20)
			up := rng.IntN(2) == 0

			client := DefaultConfig()
			client.Memory, client.Owner = b, "reads"
			other := newRig(t, rigConfig{client: client, server: DefaultConfig()})
			echo := open(t, other.client)

			f := newFlood(t, b, "does not read", up, streams, size)
			var reader atomic.Bool
			var most int64
			watched := make(chan struct{})
			go func() {
				defer close(watched)
				for !reader.Load() {
					most = max(most, b.Used(), int64(f.reader.bufferedBytes()))
					time.Sleep(time.Millisecond)
				}
			}()
			msg, got := []byte("still here"), make([]byte, 10)
			for range 100 {
				if _, err := echo.Write(msg); err != nil {
					t.Fatalf("an echo of an owner that reads: %v", err)
				}
				if _, err := io.ReadFull(echo, got); err != nil || !bytes.Equal(got, msg) {
					t.Fatalf("an echo of an owner that reads: %q, %v", got, err)
				}
			}
			endStream(echo)
			last, since := int64(-1), time.Now()
			eventually(t, "as much is buffered as may be", func() bool {
				if n := b.Used(); n != last {
					last, since = n, time.Now()
				}
				return time.Since(since) > 20*time.Millisecond && last > b.Size()/4
			})
			whole, reset := 0, 0
			var all sync.WaitGroup
			var mu sync.Mutex
			for _, st := range f.unread {
				all.Go(func() {
					defer st.Close()
					st.SetReadDeadline(time.Now().Add(time.Minute))
					n, err := io.Copy(io.Discard, struct{ io.Reader }{st})
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil && n == int64(size):
						whole++
					case errors.Is(err, ErrMemory), errors.Is(err, net.ErrClosed) && errors.Is(st.broken(), ErrMemory):
						reset++
					default:
						t.Errorf("a stream that is read again ends behind %d of %d bytes with %v", n, size, err)
					}
				})
			}
			all.Wait()
			f.sent.Wait()
			reader.Store(true)
			<-watched
			t.Logf("budget %d KiB, most buffered %d KiB, %d streams of %d KiB (to the server: %v): %d whole, %d reset", b.Size()>>10, most>>10, streams, size>>10, up, whole, reset)
			if slack := int64(256 << 10); most > b.Size()+slack { // what was reset is given back a moment later
				t.Errorf("%d bytes were buffered at once, want at most %d", most, b.Size())
			}
			if whole == 0 {
				t.Error("no stream has survived")
			}
			for _, s := range []*Session{f.rig.client, f.rig.server, other.client, other.server} {
				check(t, s.Check())
			}
			f.rig.close()
			other.close()
			eventually(t, "nothing is reserved when no session is left", func() bool { return b.Used() == 0 })
		})
	}
}
