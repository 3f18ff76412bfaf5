package sockdiag

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Table is the TCP sockets of one network namespace. The caller closes it. Next is for
// one goroutine; everything else is safe for concurrent use.
type Table struct {
	events *os.File // hears the end of listeners; nil: nothing does

	mu       sync.Mutex
	asks     int // a netlink socket; -1 when closed
	sequence uint32
	buffer   []byte
}

// answerTime bounds one answer, which the kernel gives before the question has been
// sent: for a kernel that has none.
const answerTime = time.Second

// Open returns the table of a namespace; nil is the process's own. It asks once, so
// that what cannot work is an error here.
func Open(ns Namespace) (*Table, error) {
	t := &Table{asks: -1, buffer: make([]byte, 32<<10)}
	open := func() error { return errors.Join(t.openAsks(), t.openEvents()) }
	var err error
	if ns == nil {
		err = open()
	} else {
		err = ns.Do(open)
	}
	if err == nil {
		_, _, err = t.Listener(netip.AddrPortFrom(netip.IPv4Unspecified(), 1))
	}
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("ask the kernel for TCP sockets (sock_diag): %w", err)
	}
	return t, nil
}

func (t *Table) openAsks() (err error) {
	if t.asks, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG); err != nil {
		t.asks = -1
		return os.NewSyscallError("socket", err)
	}
	limit := unix.NsecToTimeval(int64(answerTime))
	return errors.Join(
		os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(t.asks, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)),
		// To the kernel, and nobody else: whoever has CAP_NET_ADMIN in a pod could send answers otherwise.
		os.NewSyscallError("connect", unix.Connect(t.asks, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})),
	)
}

// openEvents subscribes to the end of TCP sockets. Of all that end only those without a
// remote port pass the filter: of connections, which end by the thousand, this process
// is not woken.
func (t *Table) openEvents() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	remotePort := uint32(headerBytes + 4 + 2)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: remotePort},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: ^uint32(0)},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	err = errors.Join(
		os.NewSyscallError("attach a filter", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})),
		os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1<<(groupTCP4-1) | 1<<(groupTCP6-1)})),
	)
	if err != nil {
		unix.Close(fd)
		return err
	}
	t.events = os.NewFile(uintptr(fd), "sock_diag")
	return nil
}

// Close ends Next too.
func (t *Table) Close() {
	if t.events != nil {
		t.events.Close()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asks >= 0 {
		unix.Close(t.asks)
		t.asks = -1
	}
}

// Next waits for the end of listeners and appends their local ports to ports. With
// ErrLost there may have been more; any other error is the end.
func (t *Table) Next(ports []uint16) ([]uint16, error) {
	raw, err := t.events.SyscallConn()
	if err != nil {
		return ports, err
	}
	buffer := make([]byte, 8<<10)
	n := 0
	var from unix.Sockaddr
	var errno error
	if err := raw.Read(func(fd uintptr) bool {
		n, from, errno = unix.Recvfrom(int(fd), buffer, 0)
		return errno != unix.EAGAIN && errno != unix.EINTR
	}); err != nil {
		return ports, os.ErrClosed
	}
	switch {
	case errno == unix.ENOBUFS:
		return ports, ErrLost
	case errno != nil:
		return ports, os.NewSyscallError("recvfrom", errno)
	}
	if a, ok := from.(*unix.SockaddrNetlink); !ok || a.Pid != 0 { // whoever has CAP_NET_ADMIN in a pod may send events too
		return ports, nil
	}
	_, err = decode(buffer[:n], 0, func(s socket) {
		if s.remote.Port() == 0 {
			ports = append(ports, s.local.Port())
		}
	})
	return ports, err
}

// Listener returns the listener that a connection to at would reach, if there is one:
// one of that address before one of all, also of both families. Of several that share
// the address (SO_REUSEPORT) it is always the same; see [Table.Group].
func (t *Table) Listener(at netip.AddrPort) (l Listener, ok bool, err error) {
	err = t.ask(question{family: family(at.Addr()), states: listenStates, local: at}, func(s socket) {
		if s.state == listenState {
			l, ok = s.listener(), true
		}
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return l, ok, err
}

// Connected reports whether there is a connection with these ends, local its own, whatever its state.
func (t *Table) Connected(local, remote netip.AddrPort) (there bool, err error) {
	err = t.ask(question{family: family(local.Addr()), states: anyState, local: local, remote: remote}, func(s socket) {
		there = s.state != listenState && s.local == local && s.remote == remote
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return there, err
}

// Group returns the listeners that share the address of l, itself among them. It looks
// at every listener of the machine: for once in a while.
func (t *Table) Group(l Listener) (group []Listener, err error) {
	err = t.ask(question{all: true, family: l.family, states: listenStates, local: portOnly(l.Local)}, func(s socket) {
		if s.local == l.Local {
			group = append(group, s.listener())
		}
	})
	return group, err
}

// Waiting returns the cookies of the connections that wait in the queues of the group of l, by whatever
// address they came; of a listener of all addresses also those of others that have its port. It looks at
// every connection of the machine: for once in a while.
func (t *Table) Waiting(l Listener) (cookies []uint64, err error) {
	all := l.Local.Addr().IsUnspecified()
	err = t.ask(question{all: true, family: l.family, states: waitingStates, local: portOnly(l.Local)}, func(s socket) {
		if s.inode == 0 && (all || s.local == l.Local) {
			cookies = append(cookies, s.cookie)
		}
	})
	return cookies, err
}

// Open calls each for the connections that a process has accepted or opened, with their local and remote addresses. It is
// slow: it reads every connection of the machine.
func (t *Table) Open(each func(local, remote netip.AddrPort)) error {
	return t.connections(func(s socket) {
		if s.inode != 0 {
			each(s.local, s.remote)
		}
	})
}

// All calls each for the open connections, also those that no process has accepted yet. It reads every connection of the
// machine, as Open does.
func (t *Table) All(each func(Connection)) error {
	return t.connections(func(s socket) { each(Connection{s.local, s.remote, s.cookie, s.device}) })
}

func (t *Table) connections(each func(socket)) error {
	for _, family := range []uint8{familyV4, familyV6} {
		err := t.ask(question{all: true, family: family, states: openStates}, each)
		if err != nil {
			return err
		}
	}
	return nil
}

// Listens reports whether there is a listener that could have accepted c.
func (t *Table) Listens(c Connection) (there bool, err error) {
	err = t.ask(question{family: family(c.Local.Addr()), states: listenStates, local: c.Local, device: c.device}, func(s socket) {
		there = s.state == listenState
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return there, err
}

// End resets c. It returns false if c has ended already: the kernel then looks further and finds the listener of its port,
// which only the cookie tells from c. It needs CAP_NET_ADMIN. ErrCannotEnd is the error of a kernel that cannot do it.
func (t *Table) End(c Connection) (ended bool, err error) {
	err = t.ask(question{end: true, family: family(c.Local.Addr()), states: anyState, local: c.Local, remote: c.Remote, device: c.device, cookie: c.cookie}, func(socket) {})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESTALE):
		return false, nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return false, ErrCannotEnd
	}
	return err == nil, err
}

// portOnly is the port of at and any address: what a dump goes by.
func portOnly(at netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, at.Port()) }

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return familyV4
	}
	return familyV6
}

// ask sends one question and calls each for what comes. Kernels answer before the
// question has been sent, so mu is held no longer than that takes.
func (t *Table) ask(q question, each func(socket)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asks < 0 {
		return os.ErrClosed
	}
	t.sequence = max(t.sequence+1, 1) // 0 is that of events
	if err := unix.Sendto(t.asks, q.message(t.sequence), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	for {
		n, _, err := unix.Recvfrom(t.asks, t.buffer, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return os.NewSyscallError("recvfrom", err)
		}
		found := false
		done, err := decode(t.buffer[:n], t.sequence, func(s socket) { found = true; each(s) })
		if done || err != nil || found && !q.all {
			return err
		}
	}
}
