package hbone

import (
	"net"
	"os"
	"syscall"
	"testing"
)

// unixPair is a connected pair without ports: 10 000 of them fit.
func unixPair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	check(t, err)
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		ends[i], err = net.FileConn(f)
		f.Close()
		check(t, err)
	}
	return ends[0], ends[1]
}
