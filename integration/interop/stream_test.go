package interop

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestOneByte(t *testing.T) {
	matrix(t, every, func(t *testing.T, c cell) {
		conn, err := here.open(c, verbEcho)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := echo(conn, "1"); err != nil {
			t.Error(err)
		}
		if got, err := here.who(c); got != c.server || err != nil {
			t.Errorf("the pod says it is %q (%v), want %q", got, err, c.server)
		}
	})
}

func TestBulkBothWaysKeepsItsChecksum(t *testing.T) {
	for _, size := range []int{64 << 10, 256 << 20} {
		t.Run(fmt.Sprintf("%dKiB", size>>10), func(t *testing.T) {
			text := make([]byte, size)
			rand.NewChaCha8([32]byte{1}).Read(text)
			matrix(t, every, func(t *testing.T, c cell) {
				conn, err := here.open(c, verbEcho)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(2 * time.Minute))
				sent := make(chan error, 1)
				go func() {
					_, err := conn.Write(text)
					if err == nil {
						err = conn.CloseWrite()
					}
					sent <- err
				}()
				h := sha256.New()
				n, err := io.Copy(h, conn)
				if err != nil || n != int64(size) || [32]byte(h.Sum(nil)) != sha256.Sum256(text) {
					t.Errorf("%d bytes came back (%v), want the same %d", n, err, size)
				}
				if err := <-sent; err != nil {
					t.Error("send:", err)
				}
			})
		})
	}
}

func TestClientFinishesFirst(t *testing.T) {
	text := bytes.Repeat([]byte("to the end "), 10_000)
	want := sha256.Sum256(text)
	matrix(t, every, func(t *testing.T, c cell) {
		conn, err := here.open(c, verbTake)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.Write(text)
		conn.CloseWrite()
		got, err := io.ReadAll(conn)
		if err != nil || !bytes.Equal(got, want[:]) {
			t.Errorf("after our FIN the answer is %x (%v), want %x", got, err, want)
		}
	})
}

// A stock client ends such a connection through the gateway without END_STREAM on
// the outer stream.
func TestServerFinishesFirst(t *testing.T) {
	text := bytes.Repeat([]byte("to the end "), 10_000)
	want := sha256.Sum256(text)
	matrix(t, every, func(t *testing.T, c cell) {
		conn, err := here.open(c, verbLeave)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if got, err := io.ReadAll(conn); err != nil || string(got) != farewell {
			t.Fatalf("the server says %q (%v), want %q and a clean end", got, err, farewell)
		}
		time.Sleep(100 * time.Millisecond) // our half must stay open, not only be slow to close
		if _, err := conn.Write(text); err != nil {
			t.Fatal("send after the server's FIN:", err)
		}
		conn.CloseWrite()
		select {
		case got := <-here.app.left:
			if got.err != nil || got.sum != want {
				t.Errorf("after its FIN the server got %d bytes (%v), want the %d that were sent and a clean end", got.bytes, got.err, len(text))
			}
		case <-time.After(patience):
			t.Error("after its FIN the server never heard our end")
		}
	})
}

// A stock peer gives up a session after 1024 frames for streams that it has
// reset; 10 000 short connections would lose some of theirs every time.
func TestShortConnectionsOnOneSession(t *testing.T) {
	matrix(t, every, func(t *testing.T, c cell) {
		const n, most = 10_000, 5
		before := here.opened(t, c.client)
		lost, begin := 0, time.Now()
		for i := 0; i < n && lost < most; i++ {
			if got, err := here.who(c); err != nil || got != c.server {
				lost++
				t.Errorf("connection %d: %q: %v", i, got, err)
			}
		}
		t.Logf("%d connections, %d lost, %v each", n, lost, (time.Since(begin) / n).Round(time.Microsecond))
		sessions, want := here.opened(t, c.client)-before, 1
		if c.client == "client-stock" {
			sessions -= n // the connections to it
		} else if double(c) {
			want = 2 // with the pod, inside that with the gateway
		}
		if lost == 0 && sessions > want {
			t.Errorf("%d sessions were opened for them, want at most %d", sessions, want)
		}
	})
}

// opened is how many sessions a client has opened so far. Of a stock one that is all TCP
// connections of its host, those of this process among them; ours asks gateways and pods
// that failed in earlier tests whether they answer, which are no sessions.
func (w *world) opened(t *testing.T, host string) (n int) {
	t.Helper()
	if host == "client-ours" {
		text, err := w.Get(host, ourAdmin, "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, `isthmus_pool_dials_total{result="ok"} `); ok {
				n, err = strconv.Atoi(strings.TrimSpace(rest))
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
		t.Fatalf("%s counts no sessions:\n%s", host, text)
	}
	if err := w.In(host, func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var names []string
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "Tcp:") {
				continue
			}
			if names == nil {
				names = strings.Fields(line)
				continue
			}
			n, err = strconv.Atoi(strings.Fields(line)[slices.Index(names, "ActiveOpens")])
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// A stock client puts 100 streams on a session and then opens another; a stock
// server takes 200 on one.
func TestManyStreamsAtOnce(t *testing.T) {
	matrix(t, every, func(t *testing.T, c cell) {
		var open []net.Conn
		defer func() {
			for _, conn := range open {
				conn.Close()
			}
		}()
		for i := range 500 {
			conn, err := here.open(c, verbEcho)
			if err != nil {
				t.Fatalf("stream %d: %v", i+1, err)
			}
			open = append(open, conn)
			if err := echo(conn, "first"); err != nil {
				t.Fatalf("stream %d: %v", i+1, err)
			}
		}
		for i, conn := range open {
			if err := echo(conn, fmt.Sprint("again on ", i)); err != nil {
				t.Errorf("stream %d of %d: %v", i+1, len(open), err)
			}
		}
	})
}

// While one stream is blocked for longer than the pings of both sides allow, the
// others on its session go on, and it goes on itself when it can.
func TestOneStreamBlockedForAMinute(t *testing.T) {
	need(t)
	const blocked = 60 * time.Second
	text := make([]byte, 32<<20)
	rand.NewChaCha8([32]byte{2}).Read(text)
	here.app.resume = make(chan struct{})
	all := cells(every)
	var wait sync.WaitGroup
	for _, c := range all {
		stalled := must(here.open(c, verbStall))(t)
		other := must(here.open(c, verbEcho))(t)
		t.Cleanup(func() { stalled.Close(); other.Close() })
		stalled.SetDeadline(time.Now().Add(blocked + time.Minute))
		wait.Go(func() {
			stalled.Write(text)
			stalled.CloseWrite()
			want := sha256.Sum256(text)
			if got, err := io.ReadAll(stalled); err != nil || !bytes.Equal(got, want[:]) {
				t.Errorf("%v: the blocked stream ends with %x (%v), want %x", c, got, err, want)
			}
		})
		wait.Go(func() {
			worst := time.Duration(0)
			for end := time.Now().Add(blocked); time.Now().Before(end); time.Sleep(250 * time.Millisecond) {
				begin := time.Now()
				if err := echo(other, "beside a blocked stream"); err != nil {
					t.Errorf("%v: beside a blocked stream: %v", c, err)
					return
				}
				worst = max(worst, time.Since(begin))
			}
			t.Logf("%v: the slowest echo beside the blocked stream took %v", c, worst.Round(time.Millisecond))
		})
	}
	time.Sleep(blocked)
	close(here.app.resume)
	wait.Wait()
}
