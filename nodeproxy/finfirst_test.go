package nodeproxy

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An application that has sent its whole answer and an end has closed when its client says one thing more: the kernel
// answers that with a reset, behind the end. A client that reads late has the answer and the end, as without us.
func TestAnAnswerWithItsEndIsWholeInAPlainRelay(t *testing.T) {
	t.Parallel()
	for _, more := range []int{0, 1, 100} { // that the client says behind the reset
		answerWithItsEnd(t, more)
	}
}

func answerWithItsEnd(t *testing.T, more int) {
	t.Helper()
	r := relayPlain(t)
	ioctl := func(c *net.TCPConn, what uint) (n int) {
		raw, _ := c.SyscallConn()
		raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), what) })
		return n
	}
	within := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within 5 s: %s", what)
			}
		}
	}
	rests := func() bool { // something is there to be read, and is not: the relay waits for the client
		for range 50 {
			if ioctl(r.relay.far, unix.SIOCINQ) == 0 {
				return false
			}
			time.Sleep(time.Millisecond)
		}
		return true
	}
	sent, part := 0, make([]byte, 32<<10)
	for !rests() {
		n, err := r.server.Write(part)
		if sent += n; err != nil {
			t.Fatal(err)
		}
		within("the relay's kernel has what the application has sent", func() bool { return ioctl(r.server, unix.SIOCOUTQ) == 0 })
	}
	r.server.Close()
	within("the end is there", func() bool { return hasState(r.relay.far, unix.BPF_TCP_CLOSE_WAIT) })
	if _, err := r.client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	within("the reset is there", func() bool { return appClosed(r.relay.far) })
	for range more {
		r.client.Write([]byte("x"))
		time.Sleep(100 * time.Microsecond)
	}
	if n, err := readEnd(r.client); n != sent || err != nil {
		t.Errorf("%d times more: the client has got %d bytes of %d, and %v; want all, and the end", more, n, sent, err)
	}
	if a := r.result(t); a.result != resultServerReset {
		t.Errorf("%d times more: the result is %q, %v", more, a.result, a.err)
	}
}

func hasState(c *net.TCPConn, state uint8) (has bool) {
	raw, _ := c.SyscallConn()
	raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO)
		has = err == nil && info.State == state
	})
	return has
}
