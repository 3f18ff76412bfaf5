package hbone

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/isthmus-mesh/isthmus/hbone/flow"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// bulkBeside is a session whose network stands still, with bulk waiting on some
// streams for space in the queue.
type bulkBeside struct {
	*rig
	line  *simnet.Conn
	bulk  sync.WaitGroup
	taken atomic.Int64 // bytes of bulk that the server has read
	first atomic.Int64 // taken when the first small message arrived, at least 1
}

// echo notes what has come before the first message: a client that has its response
// could only tell what came before it looked.
func (b *bulkBeside) echo(in *Incoming) {
	st, err := in.Accept(nil)
	for buf := make([]byte, 1<<10); err == nil; {
		var n int
		if n, err = st.Read(buf); n > 0 {
			b.first.CompareAndSwap(0, max(1, b.taken.Load()))
			st.Write(buf[:n])
		}
	}
	if st != nil {
		st.Close()
	}
}

const bulkStreams, bulkEach = 8, 1 << 20

func newBulkBeside(t testing.TB) (*bulkBeside, *Stream) {
	b := &bulkBeside{}
	b.rig = newRig(t, rigConfig{
		pair: func(testing.TB) (net.Conn, net.Conn) {
			x, y := simnet.Pair(simnet.Options{Buffer: 64 << 10})
			b.line = x
			return x, y
		},
		handler: func(ctx context.Context, in *Incoming) {
			if in.Authority != "bulk:1" {
				b.echo(in)
				return
			}
			st, err := in.Accept(nil)
			if err != nil {
				return
			}
			for buf := make([]byte, 16<<10); err == nil; {
				var n int
				n, err = st.Read(buf)
				b.taken.Add(int64(n))
			}
			st.Close()
		}})
	small := open(t, b.client)
	var all []*Stream
	for range bulkStreams {
		st, _, err := b.client.Open(t.Context(), &Request{Authority: "bulk:1"})
		check(t, err)
		all = append(all, st)
	}
	synctest.Wait()
	b.line.Stall()
	for _, st := range all {
		b.bulk.Go(func() {
			if _, err := st.Write(make([]byte, bulkEach)); err != nil {
				t.Error(err)
			}
			endStream(st)
		})
	}
	synctest.Wait()
	return b, small
}

func (b *bulkBeside) waiting() int {
	b.client.mu.Lock()
	defer b.client.mu.Unlock()
	return len(b.client.send.room)
}

func TestSmallMessageDoesNotWaitBehindThoseThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, small := newBulkBeside(t)
		if b.waiting() < 2 {
			t.Fatalf("%d streams wait for space, want most of %d", b.waiting(), bulkStreams)
		}
		var sent atomic.Bool
		go func() { small.Write(make([]byte, 100)); sent.Store(true) }()
		synctest.Wait()
		if !sent.Load() {
			t.Error("the small message waits for its turn")
		}
		b.line.Resume()
		_, err := io.ReadFull(small, make([]byte, 100))
		check(t, err)
		if n := b.first.Load(); n > bulkStreams*bulkEach/4 {
			t.Errorf("%d bytes of bulk went before the small message", n)
		}
		b.bulk.Wait()
		endStream(small)
		b.close()
	})
}

// Small messages without a pause do not keep bulk from its turn, and what one
// stream sends stays in order whatever the size of its writes.
func TestSmallMessagesNeitherStarveBulkNorOvertakeTheirOwnStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, small := newBulkBeside(t)
		var done atomic.Bool
		var chats sync.WaitGroup
		for range 4 {
			chats.Go(func() {
				st := open(t, b.client)
				go io.Copy(io.Discard, struct{ io.Reader }{st})
				for buf := make([]byte, flow.BulkPiece-1); !done.Load(); {
					if _, err := st.Write(buf); err != nil {
						t.Error(err)
						return
					}
				}
				st.Close()
			})
		}
		const seed = 3
		rng := rand.New(rand.NewPCG(seed, 0))
		mixed := make([]byte, 2<<20)
		for i := range mixed {
			mixed[i] = byte(rng.Uint32())
		}
		chats.Go(func() {
			for rest := mixed; len(rest) > 0; {
				n := min(len(rest), 1+rng.IntN(1<<rng.IntN(17)))
				if _, err := small.Write(rest[:n]); err != nil {
					t.Error(err)
				}
				rest = rest[n:]
			}
			small.CloseWrite()
		})
		b.line.Resume()
		got, err := io.ReadAll(small)
		check(t, err)
		if !bytes.Equal(got, mixed) {
			t.Errorf("seed %d: %d bytes came back, want %d in order", seed, len(got), len(mixed))
		}
		b.bulk.Wait()
		done.Store(true)
		chats.Wait()
		small.Close()
		if n := b.taken.Load(); n != bulkStreams*bulkEach {
			t.Errorf("%d bytes of bulk arrived, want %d", n, bulkStreams*bulkEach)
		}
		b.close()
		<-b.served
	})
}
