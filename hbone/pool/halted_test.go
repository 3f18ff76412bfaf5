package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// unreadBackend answers large:1 with as much as is taken and reads nothing of what is sent to unread:1.
func unreadBackend(t *testing.T) *backend {
	b := &backend{t: t, cfg: hbone.DefaultConfig(), delay: 40 * time.Millisecond}
	b.handler = func(ctx context.Context, in *hbone.Incoming) {
		switch in.Authority {
		case "large:1":
			if st, err := in.Accept(nil); err == nil {
				flood(st)
				st.Close()
			}
		case "unread:1":
			if st, err := in.Accept(nil); err == nil {
				<-ctx.Done()
				st.Close()
			}
		default:
			echoHandler(ctx, in)
		}
	}
	return b
}

func flood(st *hbone.Stream) {
	for buf, err := make([]byte, 64<<10), error(nil); err == nil; {
		_, err = st.Write(buf)
	}
}

// unread opens a stream of which one end does not read what the other sends, without end.
func unread(p *Pool, b *backend, authority string) (*hbone.Stream, error) {
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	st, _, err := p.Open(ctx, Key{}, b.dial, &hbone.Request{Authority: authority})
	if err == nil && authority == "unread:1" {
		go flood(st)
	}
	return st, err
}

// answered opens a stream and has a byte come back on it.
func answered(p *Pool, b *backend) error {
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	st, _, err := p.Open(ctx, Key{}, b.dial, poolReq)
	if err != nil {
		return err
	}
	defer st.Close()
	defer st.Reset(0)
	st.SetDeadline(time.Now().Add(time.Minute))
	if _, err := st.Write([]byte("x")); err != nil {
		return err
	}
	_, err = io.ReadFull(st, make([]byte, 1))
	return err
}

// However many applications do not read what they have asked for, or what is sent to them,
// and whether they are asked one after the other or all at once: who comes later is put on
// a session that can carry something.
func TestStreamsThatNobodyReadsLeaveLaterOnesAnswered(t *testing.T) {
	for _, authority := range []string{"large:1", "unread:1"} {
		for _, pause := range []time.Duration{5 * time.Second, 0} {
			for _, n := range []int{8, 16, 24, 40} {
				t.Run(fmt.Sprint(authority, " ", pause, " ", n), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						b := unreadBackend(t)
						p := New(Config{})
						var idle []*hbone.Stream
						for range n {
							st, err := unread(p, b, authority)
							check(t, err)
							idle = append(idle, st)
							time.Sleep(pause)
						}
						time.Sleep(time.Minute)
						for i := range 20 {
							if err := answered(p, b); err != nil {
								t.Errorf("connection %d beside %d that are not read: %v", i, n, err)
							}
						}
						if s := p.Stats(); s.Sessions > haltedSessions {
							t.Errorf("%d sessions; want at most %d", s.Sessions, haltedSessions)
						}
						for _, st := range idle {
							st.Reset(0)
							st.Close()
						}
						time.Sleep(time.Second)
						if s := p.Stats(); s.Held != 0 {
							t.Errorf("%d bytes are held of streams that have ended", s.Held)
						}
						p.Close()
						b.stop()
					})
				})
			}
		}
	}
}

// When as many sessions are halted as may be, a call fails at once and says why. It is served
// when there is room again.
func TestACallFailsWhenAllSessionsAreHalted(t *testing.T) {
	for _, authority := range []string{"large:1", "unread:1"} {
		t.Run(authority, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := unreadBackend(t)
				p := New(Config{})
				var idle []*hbone.Stream
				for {
					st, err := unread(p, b, authority)
					if errors.Is(err, ErrHalted) {
						break
					}
					check(t, err)
					if idle = append(idle, st); len(idle) > 200 {
						t.Fatalf("%d streams that nobody reads, and none was refused", len(idle))
					}
					time.Sleep(5 * time.Second)
				}
				began, dials := time.Now(), b.dials.Load()
				if err := answered(p, b); !errors.Is(err, ErrHalted) || time.Since(began) > 0 {
					t.Errorf("%v after %v; want ErrHalted at once", err, time.Since(began))
				}
				if s := p.Stats(); s.Sessions != haltedSessions || b.dials.Load() != dials || s.Waiting != 0 {
					t.Errorf("%+v, %d dials: want %d sessions, and none dialed", s, b.dials.Load(), haltedSessions)
				}
				if s := p.Stats(); s.Halted != haltedSessions || s.Crowded != 0 || s.Failed != (Failures{Halted: 2}) {
					t.Errorf("%d sessions are counted as halted and %d as crowded, and %+v failed; want all, none, and 2 for that", s.Halted, s.Crowded, s.Failed)
				}
				t.Logf("%d streams that nobody reads on %d sessions", len(idle), haltedSessions)
				first := idle[0].Session()
				for _, st := range idle {
					if st.Session() == first {
						st.Reset(0)
						st.Close()
					}
				}
				time.Sleep(time.Second)
				if s := p.Stats(); s.Halted != haltedSessions-1 {
					t.Errorf("%d sessions are counted as halted; want one less", s.Halted)
				}
				if err := answered(p, b); err != nil || b.dials.Load() != dials {
					t.Errorf("when those of one session have ended: %v, %d dials", err, b.dials.Load()-dials)
				}
				for _, st := range idle {
					st.Reset(0)
					st.Close()
				}
				p.Close()
				b.stop()
			})
		})
	}
}

// A session that is halted is none beside which a second one without bulk is not opened.
func TestAHaltedSessionIsNotTheOneWithoutBulk(t *testing.T) {
	for _, halted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := unreadBackend(t)
			p := New(Config{})
			var idle []*hbone.Stream
			if halted {
				for range 20 {
					st, err := unread(p, b, "large:1")
					check(t, err)
					idle = append(idle, st)
				}
				time.Sleep(time.Minute)
			}
			bulk := poolOpen(t, p, Key{}, b)
			if halted && (bulk.Session() == idle[0].Session() || b.dials.Load() != 2) {
				t.Fatalf("the test does not do what it says: %d dials", b.dials.Load())
			}
			before := b.dials.Load()
			transfer(t, bulk, 16<<20)
			small := poolOpen(t, p, Key{}, b)
			if small.Session() == bulk.Session() {
				t.Errorf("halted session %v: the small stream is on the session with bulk, %d dials for it", halted, b.dials.Load()-before)
			}
			for _, st := range append(idle, bulk, small) {
				st.Reset(0)
				st.Close()
			}
			p.Close()
			b.stop()
		})
	}
}

// What was open on a session before it was halted waits, without an error, until one of the
// streams that nobody reads is read a little or ends: docs/flow-control.md has the figures.
func TestWhatWasOpenOnAHaltedSessionWaitsForOneReader(t *testing.T) {
	const tell = 256 << 10 // a 64th of the window, of which the peer is told
	for _, end := range []bool{false, true} {
		t.Run(fmt.Sprint("a stream ends: ", end), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := unreadBackend(t)
				s, err := b.dial(t.Context())
				check(t, err)
				open, _, err := s.Open(t.Context(), poolReq)
				check(t, err)
				echo := func(patience time.Duration) error {
					open.SetDeadline(time.Now().Add(patience))
					defer open.SetDeadline(time.Time{})
					if _, err := open.Write([]byte("x")); err != nil {
						return err
					}
					_, err := io.ReadFull(open, make([]byte, 1))
					return err
				}
				var idle []*hbone.Stream
				for range 16 {
					check(t, echo(time.Second))
					st, _, err := s.Open(t.Context(), &hbone.Request{Authority: "large:1"})
					check(t, err)
					idle = append(idle, st)
					time.Sleep(5 * time.Second)
				}
				if held := s.Held(); held < 63<<20 || held > 64<<20 {
					t.Fatalf("%d bytes are held of 16 streams that nobody reads; want 64 MiB", held)
				}
				if err := echo(time.Hour); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatalf("beside them: %v; want nothing for an hour", err)
				}
				if end {
					idle[3].Reset(0)
					idle[3].Close()
				} else if _, err := io.CopyN(io.Discard, idle[3], tell); err != nil {
					t.Fatal(err)
				}
				if err := echo(time.Second); err != nil {
					t.Errorf("when one of them was read or has ended: %v", err)
				}
				for _, st := range append(idle, open) {
					st.Reset(0)
					st.Close()
				}
				s.Close(nil)
				b.stop()
			})
		})
	}
}
