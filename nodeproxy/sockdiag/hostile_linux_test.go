package sockdiag

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Whoever may send in the namespace (CAP_NET_ADMIN in a pod) is not the kernel: what he sends is no
// answer, and holds up nobody.
func TestNobodyButTheKernelAnswers(t *testing.T) {
	s := space(t)
	table, err := Open(inHost{s, "pod"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	name, err := unix.Getsockname(table.asks)
	if err != nil {
		t.Fatal(err)
	}
	sender := -1
	if err := s.In("pod", func() (err error) {
		sender, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var end atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !end.Load() {
			unix.Sendto(sender, question{local: netip.MustParseAddrPort("10.0.0.1:1")}.message(1<<30), 0, name)
		}
	}()
	began := time.Now()
	asked := make(chan error, 1)
	go func() {
		for range 1000 {
			if _, _, err := table.Listener(netip.MustParseAddrPort("127.0.0.1:8080")); err != nil {
				asked <- err
				return
			}
		}
		asked <- nil
	}()
	select {
	case err := <-asked:
		if err != nil {
			t.Errorf("asked for %v: %v", time.Since(began), err)
		}
	case <-time.After(10 * time.Second):
		t.Error("a question has had no answer, and no end")
	}
	t.Log(time.Since(began))
	end.Store(true)
	<-ended
	unix.Close(sender)
}

// What he sends is no event either, and does not end that the end of listeners is heard.
func TestNobodyButTheKernelSaysThatAListenerHasEnded(t *testing.T) {
	s := space(t)
	table, err := Open(inHost{s, "pod"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	raw, err := table.events.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var name unix.Sockaddr
	if e := raw.Control(func(fd uintptr) { name, err = unix.Getsockname(int(fd)) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	l, err := s.Listen("pod", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.In("pod", func() error {
		sender, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
		if err != nil {
			return err
		}
		defer unix.Close(sender)
		return unix.Sendto(sender, make([]byte, headerBytes+4+4), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: name.(*unix.SockaddrNetlink).Pid})
	}); err != nil {
		t.Fatal(err)
	}
	l.Close()
	for heard := []uint16(nil); !slices.Contains(heard, 8080); { // others may end too
		if heard, err = table.Next(heard); err != nil {
			t.Fatalf("it hears of %v, %v; want port 8080", heard, err)
		}
	}
}
