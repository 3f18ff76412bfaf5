package demoapp

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A client whose handshake the listener has not finished counts as one that got
// connected, because for its own kernel it is.
func TestRefuseLetsHandshakesFinish(t *testing.T) {
	a, addr := start(t, Request)
	p := a.ports[addr.Port()]
	onlySYN := []unix.SockFilter{ // the ACK of a handshake is lost
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 2, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	prog := unix.SockFprog{Len: uint16(len(onlySYN)), Filter: &onlySYN[0]}
	if err := withFD(p.listener, func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog)
	}); errors.Is(err, unix.EPERM) {
		t.Logf("this kernel lets only root attach a filter: %v", err)
		return
	} else if err != nil {
		t.Fatal(err)
	}
	c, err := dial(t, addr, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := handshakes(addr); n != 1 || err != nil {
		t.Fatalf("%d half-open connections, %v; want 1", n, err)
	}
	refused := make(chan error, 1)
	go func() { refused <- a.Refuse(t.Context(), addr.Port()) }()
	select {
	case err := <-refused:
		t.Fatalf("refuse did not wait for the handshake: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := hello(c, "1", 20*time.Second); err != nil {
		t.Errorf("connected, then: %v, want an answer", err)
	}
	if err := <-refused; err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, addr, 20*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial while refusing: got %v, want ECONNREFUSED", err)
	}
}
