package quic

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// An ICMP error of a port fails the session if the peer is gone, and only then.
func TestRefusedPort(t *testing.T) {
	for _, c := range []struct {
		name    string
		returns bool
		delay   time.Duration // of a packet
	}{{"peer is gone", false, 0}, {"peer is there", true, 0}, {"peer is there, far away", true, 600 * time.Millisecond}} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() && c.delay > 0 {
				t.Skip("takes 15 s")
			}
			r := newRig(t, rigConfig{})
			n := newNAT(t, r.listener.Addr())
			n.delay.Store(int64(c.delay))
			p, err := Dial(context.Background(), udp(t), n.front.LocalAddr(), r.clientTLS(), DialConfig{})
			check(t, err)
			s, err := hbone.StartClient(p, hbone.DefaultConfig())
			check(t, err)
			defer func() { s.Close(nil); <-s.Closed() }()
			st := open(t, s)
			defer st.Close()
			there := func() error {
				if _, err := st.Write([]byte("x")); err != nil {
					return err
				}
				_, err := io.ReadFull(st, make([]byte, 1))
				return err
			}
			check(t, there())

			time.Sleep(3 * c.delay) // until no packet is on its way
			at := n.front.LocalAddr().(*net.UDPAddr)
			n.front.Close()
			began := time.Now()
			if c.returns {
				_, err := st.Write([]byte("x"))
				check(t, err)
				time.Sleep(lingerTime / 10)
				front, err := net.ListenUDP("udp", at)
				check(t, err)
				n.serve(front)
				_, err = io.ReadFull(st, make([]byte, 1))
				check(t, err)
				time.Sleep(lingerTime * 3 / 2)
				check(t, there())
				return
			}
			err = there()
			if took := time.Since(began); !errors.Is(s.Err(), syscall.ECONNREFUSED) || took > 4*lingerTime {
				t.Errorf("after %v: %v, session %v; want that the port is refused", took, err, s.Err())
			}
		})
	}
}

// failing is a socket whose writes fail while errno is set.
type failing struct {
	*net.UDPConn
	errno atomic.Pointer[syscall.Errno]
}

func newFailing(t testing.TB) *failing { return &failing{UDPConn: udp(t).(*net.UDPConn)} }

func (f *failing) WriteMsgUDP(b, oob []byte, to *net.UDPAddr) (int, int, error) {
	if errno := f.errno.Load(); errno != nil {
		return 0, 0, &net.OpError{Op: "write", Net: "udp", Err: os.NewSyscallError("sendmsg", *errno)}
	}
	return f.UDPConn.WriteMsgUDP(b, oob, to)
}

// Packets that this host does not send are lost, whatever the error. The session goes on when the error is over.
func TestSessionOutlivesSendErrors(t *testing.T) {
	errnos := []syscall.Errno{syscall.ENOBUFS, syscall.EPERM, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ECONNREFUSED, syscall.ENETDOWN}
	for _, side := range []string{"client", "server"} {
		t.Run(side, func(t *testing.T) {
			f := newFailing(t)
			var c rigConfig
			var pc net.PacketConn = f
			if side == "server" {
				c.socket, pc = f, udp(t)
			}
			r := newRig(t, c)
			p, err := Dial(t.Context(), pc, r.listener.Addr(), r.clientTLS(), DialConfig{})
			check(t, err)
			s, err := hbone.StartClient(p, hbone.DefaultConfig())
			check(t, err)
			defer func() { s.Close(nil); <-s.Closed() }()
			st := open(t, s)
			defer st.Close()
			for _, errno := range errnos {
				before := sendErrors.Load()
				f.errno.Store(&errno)
				_, err := st.Write([]byte("x"))
				check(t, err)
				eventually(t, "the error has occurred", func() bool { return sendErrors.Load() > before+1 })
				f.errno.Store(nil)
				if _, err := io.ReadFull(st, make([]byte, 1)); err != nil {
					t.Fatalf("behind %v: %v, session %v", errno, err, s.Err())
				}
			}
		})
	}
}

// quic-go sees errors that it handles, and those that last.
func TestSocketReturnsOtherSendErrors(t *testing.T) {
	f := newFailing(t)
	s := newSocket(f)
	defer s.Close()
	s.ignoreErrors(func() {})
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.EINVAL, syscall.EBADF} {
		f.errno.Store(&errno)
		if _, _, err := s.WriteMsgUDP([]byte("x"), nil, f.LocalAddr().(*net.UDPAddr)); !errors.Is(err, errno) {
			t.Errorf("got %v, want %v", err, errno)
		}
	}
}

// An error of this host fails a dial at once, so that the caller may use another address.
func TestDialFailsBySendError(t *testing.T) {
	r := newRig(t, rigConfig{})
	f := newFailing(t)
	errno := syscall.ENETUNREACH
	f.errno.Store(&errno)
	started := time.Now()
	if _, err := Dial(t.Context(), f, r.listener.Addr(), r.clientTLS(), DialConfig{}); err == nil || time.Since(started) > 2*time.Second {
		t.Errorf("after %v: %v, want an error at once", time.Since(started), err)
	}
}

// failingReads counts reads that fail as on a host without memory.
type failingReads struct{ n int }

func (f *failingReads) ReadBatch([]ipv4.Message, int) (int, error) {
	if f.n++; f.n > 20 {
		return 0, net.ErrClosed
	}
	return 0, os.NewSyscallError("recvmmsg", syscall.ENOMEM)
}

// A lasting error of this host does not take a processor.
func TestSocketPausesAtReadErrors(t *testing.T) {
	s := newSocket(udp(t).(*net.UDPConn))
	defer s.Close()
	s.ignoreErrors(func() {})
	f := &failingReads{}
	s.batch = f
	started := time.Now()
	if _, err := s.ReadBatch(nil, 0); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want that the socket is closed", err)
	}
	if d := time.Since(started); d < 19*readPause {
		t.Errorf("%d reads in %v", f.n, d)
	}
}

// quic-go's own line about a small buffer is off, unless the operator wants it.
func TestOperatorDecidesOnBufferWarning(t *testing.T) {
	for set, want := range map[string]string{"": "true", "false": "false", "true": "true"} {
		t.Setenv(noBufferWarning, set) // restored at the end
		if set == "" {
			os.Unsetenv(noBufferWarning)
		}
		newSocket(udp(t).(*net.UDPConn)).Close()
		if got := os.Getenv(noBufferWarning); got != want {
			t.Errorf("set to %q: %q, want %q", set, got, want)
		}
	}
}
