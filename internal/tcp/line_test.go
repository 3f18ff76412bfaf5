package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// option returns an option of TCP of conn's socket.
func option(t *testing.T, conn net.Conn, name int) (value int) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, name) }), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestLineSetsUpBothEnds(t *testing.T) {
	const other = "reno" // each kernel has it
	l := Line{Congestion: other, Unsent: 77 << 10, UserTimeout: 12 * time.Second, MaxSegment: 1111}
	lc := net.ListenConfig{Control: l.Control}
	listener, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	d := net.Dialer{Control: l.Control}
	dialed, err := d.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialed.Close()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	for name, conn := range map[string]net.Conn{"dialed": dialed, "accepted": accepted} {
		if got := option(t, conn, unix.TCP_NOTSENT_LOWAT); got != l.Unsent {
			t.Errorf("%s: TCP_NOTSENT_LOWAT %d, want %d", name, got, l.Unsent)
		}
		if got := option(t, conn, unix.TCP_USER_TIMEOUT); got != 12000 {
			t.Errorf("%s: TCP_USER_TIMEOUT %d ms, want 12000", name, got)
		}
		i, ok := InfoOf(conn)
		if !ok || i.Congestion != other || i.SegmentSize > l.MaxSegment || i.MaxSegment != l.MaxSegment {
			t.Errorf("%s: %+v, %v, want %s and segments of %d bytes with their options", name, i, ok, other, l.MaxSegment)
		}
	}
	const size = 1 << 20
	go dialed.Write(make([]byte, size))
	if _, err := io.CopyN(io.Discard, accepted, size); err != nil {
		t.Fatal(err)
	}
	if i, _ := InfoOf(dialed); i.Segments < size/1111 || i.MinRTT <= 0 || i.RTT < i.MinRTT || i.DeliveryRate == 0 || i.BytesAcked < size/2 || i.Lost() != 0 {
		t.Errorf("%+v after %d bytes", i, size)
	}
	dialed.Close()
	if i, ok := InfoOf(dialed); ok {
		t.Errorf("a closed connection has %+v", i)
	}
	if i, ok := InfoOf(nil); ok {
		t.Errorf("no connection has %+v", i)
	}
}

func TestLineIgnoresUnknownCongestionControl(t *testing.T) {
	if err := Offers("none-such"); !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EPERM) {
		t.Errorf("a congestion control that the kernel has not: %v", err)
	}
	lc := net.ListenConfig{Control: Line{Congestion: "none-such"}.Control}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
