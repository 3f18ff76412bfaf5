package interop

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
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
	for _, size := range []int{64 << 10, 64 << 20} {
		t.Run(fmt.Sprintf("%dKiB", size>>10), func(t *testing.T) {
			text := make([]byte, size)
			rand.NewChaCha8([32]byte{1}).Read(text)
			matrix(t, every, func(t *testing.T, c cell) {
				conn, err := here.open(c, verbEcho)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(60 * time.Second))
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
// reset; 5000 short connections would lose some of theirs every time.
func TestShortConnectionsOnOneSession(t *testing.T) {
	matrix(t, every, func(t *testing.T, c cell) {
		const n, most = 5000, 5
		lost, begin := 0, time.Now()
		for i := 0; i < n && lost < most; i++ {
			if got, err := here.who(c); err != nil || got != c.server {
				lost++
				t.Errorf("connection %d: %q: %v", i, got, err)
			}
		}
		t.Logf("%d connections, %d lost, %v each", n, lost, (time.Since(begin) / n).Round(time.Microsecond))
	})
}

// A stock client puts 100 streams on a session and then opens another.
func TestManyStreamsAtOnce(t *testing.T) {
	matrix(t, every, func(t *testing.T, c cell) {
		var open []net.Conn
		defer func() {
			for _, conn := range open {
				conn.Close()
			}
		}()
		for i := range 150 {
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
