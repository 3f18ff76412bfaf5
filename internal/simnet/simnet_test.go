package simnet

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestBytesArriveAfterTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pair(Options{Delay: 40 * time.Millisecond})
		start := time.Now()
		a.Write([]byte("hi"))
		a.CloseWrite()
		got, err := io.ReadAll(b)
		if took := time.Since(start); string(got) != "hi" || err != nil || took != 40*time.Millisecond {
			t.Fatalf("got %q, %v after %v; want hi after 40ms", got, err, took)
		}
	})
}

func TestStalledLinkFillsUpAndResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pair(Options{Buffer: 10})
		a.Stall()
		a.SetWriteDeadline(time.Now().Add(time.Second))
		if n, err := a.Write(make([]byte, 20)); n != 10 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("wrote %d, %v; want 10 and a deadline", n, err)
		}
		b.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("stalled read: %v, want a deadline", err)
		}
		b.SetReadDeadline(time.Time{})
		a.Resume()
		if n, err := b.Read(make([]byte, 20)); n != 10 || err != nil {
			t.Fatalf("read %d, %v after resume; want 10", n, err)
		}
	})
}

func TestCutAndResetAreSeenAsResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pair(Options{})
		a.Cut()
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("read after cut: %v", err)
		}
		a, b = Pair(Options{})
		a.SetLinger(0)
		a.Close()
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("read after reset: %v", err)
		}
		if _, err := b.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Fatalf("write after reset: %v", err)
		}
	})
}

// As Linux does it: a second read after a reset looks like an end.
func TestResetIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, reset := range map[string]func(*Conn){
			"reset": func(c *Conn) { c.SetLinger(0); c.Close() },
			"cut":   (*Conn).Cut,
		} {
			a, b := Pair(Options{Delay: time.Millisecond})
			reset(a)
			if time.Sleep(time.Millisecond); !b.StateClose() || a.StateClose() && name == "reset" {
				t.Errorf("%s: reset at one end %v, at the other %v", name, a.StateClose(), b.StateClose())
			}
			if _, err := b.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s: first read: %v, want ECONNRESET", name, err)
			}
			if _, err := b.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("%s: second read: %v, want io.EOF", name, err)
			}
		}
	})
}

// As Linux does it: a reset behind a FIN leaves an end to be read.
func TestAResetBehindAFINIsReadAsAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pair(Options{})
		a.Write([]byte("x"))
		a.CloseWrite()
		if b.EndedFirst() {
			t.Error("a FIN alone is no reset")
		}
		a.SetLinger(0)
		a.Close()
		if !b.StateClose() || !b.EndedFirst() {
			t.Errorf("closed %v, behind a FIN %v", b.StateClose(), b.EndedFirst())
		}
		if got, err := io.ReadAll(b); string(got) != "x" || err != nil || !b.EndedFirst() {
			t.Errorf("read %q, %v", got, err)
		}
		a, b = Pair(Options{})
		a.SetLinger(0)
		a.Close()
		if !b.StateClose() || b.EndedFirst() {
			t.Errorf("without a FIN: closed %v, behind a FIN %v", b.StateClose(), b.EndedFirst())
		}
	})
}

func TestFinishEndsBothDirections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pair(Options{Delay: time.Millisecond})
		a.Write([]byte("x"))
		a.Finish()
		if got, err := io.ReadAll(b); string(got) != "x" || err != nil {
			t.Errorf("one end got %q, %v; want x and an end", got, err)
		}
		if got, err := io.ReadAll(a); len(got) > 0 || err != nil {
			t.Errorf("the other end got %q, %v; want an end", got, err)
		}
	})
}

// As Linux does it: two FINs lead to CLOSE as a reset does, also before anything is read.
func TestTwoFINsLeadToTheStateClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = time.Millisecond
		a, b := Pair(Options{Delay: delay})
		a.Write([]byte("x"))
		a.CloseWrite()
		if time.Sleep(delay); a.StateClose() || b.StateClose() {
			t.Error("one FIN has led to CLOSE")
		}
		b.CloseWrite()
		if b.StateClose() {
			t.Error("a FIN under way has led to CLOSE")
		}
		if time.Sleep(delay); !a.StateClose() || !b.StateClose() {
			t.Error("two FINs have not led to CLOSE")
		}
		if got, err := io.ReadAll(b); string(got) != "x" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

func TestTryReadDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Pair(Options{Delay: time.Millisecond, Buffer: 4})
		if _, err := b.TryRead(make([]byte, 1)); err != syscall.EAGAIN {
			t.Errorf("nothing sent: %v, want EAGAIN", err)
		}
		if n, err := a.TryWrite([]byte("hello")); n != 4 || err != nil {
			t.Errorf("wrote %d, %v into a buffer of 4", n, err)
		}
		if _, err := a.TryWrite([]byte("o")); err != syscall.EAGAIN {
			t.Errorf("full: %v, want EAGAIN", err)
		}
		raw, err := b.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		n, p := 0, make([]byte, 8)
		if werr := raw.Read(func(uintptr) bool { n, err = b.TryRead(p); return err != syscall.EAGAIN }); werr != nil || err != nil || string(p[:n]) != "hell" {
			t.Errorf("got %q, %v, %v", p[:n], err, werr)
		}
		b.SetReadDeadline(time.Now().Add(time.Second))
		werr := raw.Read(func(uintptr) bool { _, err = b.TryRead(p); return err != syscall.EAGAIN })
		if !errors.Is(werr, os.ErrDeadlineExceeded) {
			t.Errorf("nothing comes: %v, want the deadline", werr)
		}
	})
}

func TestNetworkConnectsByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Network{Options: Options{Delay: time.Millisecond}}
		if _, err := n.Dial(t.Context(), "127.0.0.1:80"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("dial without listener: %v", err)
		}
		l, err := n.Listen("127.0.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		a, err := n.Dial(t.Context(), "127.0.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		b, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		a.Write([]byte("x"))
		a.Close()
		if got, err := io.ReadAll(b); string(got) != "x" || err != nil {
			t.Fatalf("got %q, %v", got, err)
		}
	})
}
