package localfault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
)

// endpoints are the errnos of an endpoint, per system call, as man pages and the
// kernel's conversion of ICMP have them. It repeats rows on purpose: whoever
// changes one has to think of both.
var endpoints = map[string]string{
	"connect":  "ECONNREFUSED ECONNRESET ECONNABORTED EPIPE ETIMEDOUT EHOSTUNREACH EHOSTDOWN ENONET ENOPROTOOPT EPROTO ENETUNREACH EACCES",
	"accept":   "ECONNREFUSED ECONNRESET ECONNABORTED EPIPE ETIMEDOUT EHOSTUNREACH EHOSTDOWN ENONET ENOPROTOOPT EPROTO ENETUNREACH EACCES ENOTCONN",
	"recvmmsg": "ECONNREFUSED ECONNRESET ECONNABORTED EPIPE ETIMEDOUT EHOSTUNREACH EHOSTDOWN ENONET ENOPROTOOPT EPROTO ENETUNREACH EACCES ENOTCONN",
	"sendmmsg": "ECONNREFUSED ECONNRESET ECONNABORTED EPIPE ETIMEDOUT EHOSTUNREACH EHOSTDOWN ENONET ENOPROTOOPT EPROTO ENETUNREACH EACCES ENOTCONN",
	"bind":     "",
	"socket":   "",
	"setns":    "",
}

// names are the errnos that the manual pages of these calls list, and more.
var names = map[syscall.Errno]string{
	syscall.ECONNREFUSED: "ECONNREFUSED", syscall.ECONNRESET: "ECONNRESET", syscall.ECONNABORTED: "ECONNABORTED", syscall.EPIPE: "EPIPE",
	syscall.ETIMEDOUT: "ETIMEDOUT", syscall.EHOSTUNREACH: "EHOSTUNREACH", syscall.EHOSTDOWN: "EHOSTDOWN", syscall.ENONET: "ENONET",
	syscall.ENOPROTOOPT: "ENOPROTOOPT", syscall.EPROTO: "EPROTO", syscall.ENETUNREACH: "ENETUNREACH", syscall.ENOTCONN: "ENOTCONN", syscall.EACCES: "EACCES",
}

// lastErrno is EHWPOISON, the last errno of Linux.
const lastErrno = 133

// wrappings are the ways in which an error of a system call reaches a caller.
var wrappings = map[string]func(error) error{
	"plain":           func(err error) error { return err },
	"fmt.Errorf":      func(err error) error { return fmt.Errorf("dial the pod: %w", err) },
	"two %w, first":   func(err error) error { return fmt.Errorf("%w (%w)", err, io.EOF) },
	"two %w, last":    func(err error) error { return fmt.Errorf("%w (%w)", io.EOF, err) },
	"errors.Join":     func(err error) error { return errors.Join(context.DeadlineExceeded, err) },
	"beside a remote": func(err error) error { return errors.Join(syscall.ECONNREFUSED, err) },
	"net.OpError":     func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} },
	"deep": func(err error) error {
		return fmt.Errorf("a: %w", errors.Join(io.EOF, fmt.Errorf("b: %w (%w)", os.ErrDeadlineExceeded, &net.OpError{Op: "dial", Err: fmt.Errorf("c: %w", err)})))
	},
}

func TestIsDecidesEachErrnoAndCall(t *testing.T) {
	for call, list := range endpoints {
		for errno := syscall.Errno(1); errno <= lastErrno; errno++ {
			remote := names[errno] != "" && strings.Contains(" "+list+" ", " "+names[errno]+" ")
			for name, wrap := range wrappings {
				if err := wrap(os.NewSyscallError(call, errno)); Is(err) == remote {
					t.Errorf("%s, %s: Is(%v) = %t, want %t", call, name, err, !remote, remote)
				}
				if New(errno) == nil || !Is(wrap(New(errno))) {
					t.Errorf("%s: New(%v) is not local", name, errno)
				}
			}
		}
	}
}

// An errno without the name of its call is one of connect(2), or of what
// net.OpError names.
func TestIsDecidesErrnoWithoutCall(t *testing.T) {
	for errno := syscall.Errno(1); errno <= lastErrno; errno++ {
		for op, call := range map[string]string{"": "connect", "dial": "connect", "accept": "accept", "read": "accept", "write": "accept"} {
			err := error(errno)
			if op != "" {
				err = &net.OpError{Op: op, Err: errno}
			}
			if got, want := Is(err), Is(os.NewSyscallError(call, errno)); got != want {
				t.Errorf("Is(%v) with op %q = %t, want %t as for %s", err, op, got, want, call)
			}
		}
	}
}

func TestIsWithoutErrno(t *testing.T) {
	for err, want := range map[error]bool{
		nil: false, io.EOF: false, os.ErrDeadlineExceeded: false, context.DeadlineExceeded: false, errors.New("tls: internal error"): false, syscall.Errno(0): false,
		errors.Join(io.EOF, os.ErrDeadlineExceeded):                                                                      false,
		&net.DNSError{Err: "no such host", Name: "gateway", IsNotFound: true}:                                            true,
		&net.OpError{Op: "dial", Err: &net.DNSError{Err: "i/o timeout", IsTimeout: true}}:                                true,
		&net.OpError{Op: "dial", Err: &net.AddrError{Err: "missing port in address", Addr: "10.0.0.1"}}:                  true,
		fmt.Errorf("open network namespace: %w", &os.PathError{Op: "open", Path: "/run/netns/pod", Err: syscall.ENOENT}): true,
		fmt.Errorf("in the pod: %w", New(os.ErrClosed)):                                                                  true,
		New(nil): false,
	} {
		if got := Is(err); got != want {
			t.Errorf("Is(%v) = %t, want %t", err, got, want)
		}
	}
}

func TestIsOnRealDials(t *testing.T) {
	for name, c := range map[string]struct {
		dialer net.Dialer
		to     string
		local  bool
	}{
		"no source address": {net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}}, "127.0.0.1:9", true}, // TEST-NET-1
		"no such port":      {net.Dialer{}, "127.0.0.1:99999", true},
		"refused":           {net.Dialer{}, "127.0.0.1:9", false},
	} {
		if _, err := c.dialer.Dial("tcp", c.to); err == nil || Is(err) != c.local {
			t.Errorf("%s: Is(%v) = %t, want %t", name, err, !c.local, c.local)
		}
	}
}

func TestArchitectureHasTable(t *testing.T) {
	cell := func(r row, s site) string {
		for _, x := range r.in {
			if x == s && s == connecting && r.route {
				return "the endpoint's, if this host has a route"
			}
			if x == s {
				return "the endpoint's"
			}
		}
		return "local"
	}
	var table strings.Builder
	table.WriteString("| errno | `connect` | `accept`, `read`, `write` | any call before `connect` | cause |\n|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s | %s |\n", r.name, cell(r, connecting), cell(r, connected), cell(r, before), r.reason)
	}
	for _, r := range localRows {
		fmt.Fprintf(&table, "| %s | local | local | local | %s |\n", r.names, r.reason)
	}
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), table.String()) {
		t.Errorf("docs/architecture.md lacks this table:\n%s", table.String())
	}
}

// localRows documents the local errnos that occur. The rule needs none of them.
var localRows = []struct{ names, reason string }{
	{"`EADDRNOTAVAIL`, `EADDRINUSE`", "no source port is free, or the source address is not of this host"},
	{"`EMFILE`, `ENFILE`", "the process, or the host, has no descriptor left"},
	{"`ENOBUFS`, `ENOMEM`", "the host has no memory for the socket"},
	{"`EPERM`", "a firewall, a security module, or a missing capability"},
	{"`EAGAIN`, `EINVAL`, `ENETDOWN`, `ENODEV`", "a route of type `blackhole`, or an interface that is down or gone"},
	{"`ESRCH`, `ENOENT`, `EBADF`", "a network namespace that is gone, at `setns` or `open`"},
	{"any other", "nothing shows that the endpoint caused it"},
}
