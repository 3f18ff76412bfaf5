package gateway

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// hello is what crypto/tls says first, with the given key exchanges.
func hello(t testing.TB, curves ...tls.CurveID) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer b.Close()
	go func() {
		tls.Client(a, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, CurvePreferences: curves}).Handshake()
		a.Close()
	}()
	buf := make([]byte, helloMax)
	n, err := b.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// records is h, one record, cut into records of at most size bytes.
func records(h []byte, size int) []byte {
	var out []byte
	for h = h[5:]; len(h) > 0; {
		n := min(len(h), size)
		out = append(append(out, 22, 3, 1, byte(n>>8), byte(n)), h[:n]...)
		h = h[n:]
	}
	return out
}

// with is h with b from byte i on.
func with(h []byte, i int, b ...byte) []byte {
	out := bytes.Clone(h)
	copy(out[i:], b)
	return out
}

func TestTakesOnlyOneWholeHelloForComplete(t *testing.T) {
	small, large := hello(t, tls.X25519), hello(t, tls.X25519MLKEM768)
	app := []byte{23, 3, 3, 0, 1, 0}
	for _, c := range []struct {
		name  string
		bytes []byte
		whole bool
	}{
		{"classic", small, true},
		{"post-quantum", large, true},
		{"in several records", records(large, 100), true},
		{"in records of three bytes", records(small, 3), false}, // no TLS stack does that
		{"with early data behind it", append(bytes.Clone(small), app...), false},
		{"something else", []byte("PRI * HTTP/2.0\r\n"), false},
		{"application data", app, false},
		{"cut short", small[:len(small)-1], false},
		{"another handshake message", []byte{22, 3, 1, 0, 4, 2, 0, 0, 0}, false},
		{"more than it says", []byte{22, 3, 1, 0, 6, 1, 0, 0, 1, 9, 9}, false},
		{"an endless one", append([]byte{22, 3, 1, 0xff, 0xff, 1, 0xff, 0xff, 0xff}, make([]byte, helloMax)...), false},
		{"of a version that does not exist", with(small, 1, 0x99, 0x99), false},
		{"with a second record of such a version", with(records(small, 100), 106, 0x99), false},
		{"with a body of such a version", with(small, 9, 0x99), false},
		{"with a session ID longer than can be", with(small, 43, 33), false},
		{"with half a cipher suite", with(small, 44+int(small[43]), 0, 3), false},
		{"with extensions longer than it", with(large, 44+int(large[43])+2+int(large[45+int(large[43])])+2, 0xff, 0xff), false},
		{"with a body of zeros", append([]byte{22, 3, 1, 0, 54, 1, 0, 0, 50, 3, 3}, make([]byte, 48)...), false},
		{"nothing", nil, false},
	} {
		for name, step := range map[string]int{"at once": len(c.bytes), "byte by byte": 1} {
			t.Run(c.name+" "+name, func(t *testing.T) {
				done, complete, n := false, false, 0
				for n < len(c.bytes) && !done {
					n += step
					done, complete = helloState(c.bytes[:n], helloMax)
				}
				if step == 1 && len(c.bytes) > len(small) && bytes.HasPrefix(c.bytes, small) {
					return // the hello is whole before anything else comes
				}
				if complete != c.whole {
					t.Errorf("complete = %v after %d bytes of %d, want %v", complete, n, len(c.bytes), c.whole)
				}
				if waits := c.name == "cut short" || c.name == "nothing"; done == waits {
					t.Errorf("done = %v after %d bytes of %d", done, n, len(c.bytes))
				}
			})
		}
	}
}

func FuzzHelloSize(f *testing.F) {
	f.Add(hello(f, tls.X25519), 7)
	f.Add(records(hello(f, tls.X25519MLKEM768), 50), 300)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		size, ok := helloSize(b)
		if ok && size < len(b) { // whole: a shorter view of it must not be taken for whole
			cut = min(max(cut, 0), size-1)
			if part, ok := helloSize(b[:cut]); ok && part <= cut && cut > 0 {
				t.Errorf("%d bytes of %d pass for a whole hello", cut, size)
			}
		}
	})
}

func TestAwaitByteTellsWhyThereIsNone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, c := range map[string]struct {
		peer func(*net.TCPConn)
		want func(error) bool
	}{
		"speaks": {func(c *net.TCPConn) { c.Write([]byte("x")) }, func(err error) bool { return err == nil }},
		"ends":   {func(c *net.TCPConn) { c.Close() }, func(err error) bool { return err == io.EOF }},
		"resets": {func(c *net.TCPConn) { c.SetLinger(0); c.Close() }, func(err error) bool { return err != nil && !isTimeout(err) && !errors.Is(err, io.EOF) }},
		"silent": {func(*net.TCPConn) {}, isTimeout},
	} {
		a, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		b, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.peer(b.(*net.TCPConn))
		limit := 20 * time.Second
		if name == "silent" {
			limit /= 1000
		}
		if err := awaitByte(t.Context(), a.(*net.TCPConn), limit); !c.want(err) {
			t.Errorf("a peer that %s: %v", name, err)
		}
		if name == "speaks" {
			if got := make([]byte, 1); func() bool { _, err := a.Read(got); return err != nil || got[0] != 'x' }() {
				t.Error("the byte is gone")
			}
		}
		a.Close()
		b.Close()
	}
}
