//go:build linux

package podns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ID tells network namespaces apart while somebody keeps both of them alive.
type ID struct{ Device, Inode uint64 }

// Namespace is an open network namespace. Safe for concurrent use.
type Namespace struct {
	file *os.File
	id   ID
	home *os.File // the process's own
}

// began is the network namespace that the process began in, once somebody has wanted to know.
var began struct {
	mu   sync.Mutex
	file *os.File
}

// own returns that. What could not be opened, for want of descriptors, is tried the next time.
func own() (*os.File, error) {
	began.mu.Lock()
	defer began.mu.Unlock()
	if began.file == nil {
		f, err := os.Open("/proc/self/ns/net")
		if err != nil {
			return nil, err
		}
		began.file = f
	}
	return began.file, nil
}

// Open opens the network namespace at path: a file below /run/netns, or /proc/<pid>/ns/net.
func Open(path string) (*Namespace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	return newNamespace(f)
}

// FromFile returns the network namespace that was opened as f, which it owns, also when it fails.
func FromFile(f *os.File) (*Namespace, error) { return newNamespace(f) }

// Clone opens n once more: each of the two is closed by itself.
func (n *Namespace) Clone() (*Namespace, error) {
	again := -1
	err := n.FD(func(fd int) (err error) {
		again, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return os.NewSyscallError("fcntl", err)
	})
	if err != nil {
		return nil, err
	}
	return &Namespace{file: os.NewFile(uintptr(again), n.file.Name()), id: n.id, home: n.home}, nil
}

// newNamespace owns f.
func newNamespace(f *os.File) (*Namespace, error) {
	home, err := own()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open the network namespace of this process: %w", err)
	}
	n := &Namespace{file: f, home: home}
	if n.id, err = identify(f); err == nil {
		err = n.isNetwork()
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return n, nil
}

// identify returns the ID of an open namespace.
func identify(f *os.File) (ID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return ID{}, os.NewSyscallError("fstat", err)
	}
	return ID{uint64(st.Dev), st.Ino}, nil
}

// isNetwork has an error if the file is no network namespace, such as one below /run/netns
// that nothing is mounted on.
func (n *Namespace) isNetwork() error {
	kind, err := unix.IoctlRetInt(int(n.file.Fd()), unix.NS_GET_NSTYPE)
	switch {
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL), err == nil && kind != unix.CLONE_NEWNET:
		return errors.New("is no network namespace")
	}
	return os.NewSyscallError("ioctl NS_GET_NSTYPE", err)
}

// Own is the network namespace of the process itself.
func Own() (ID, error) {
	home, err := own()
	if err != nil {
		return ID{}, err
	}
	return identify(home)
}

// ID of n, also when it is closed.
func (n *Namespace) ID() ID { return n.id }

// Close lets go of the namespace: it ends when nobody else keeps it. Sockets that were opened in
// it live on, and keep it.
func (n *Namespace) Close() error { return n.file.Close() }

// FD calls f with the descriptor of the namespace, which stays open until f has returned.
func (n *Namespace) FD(f func(fd int) error) error {
	raw, err := n.file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// lockEvery is how often a namespace is tried that another process has locked.
const lockEvery = time.Millisecond

// Lock has processes that call it do something in a namespace one after the other, for which this one waits within a
// time and no longer: any process of a pod may lock its own namespace, and keep it locked. unlock is to be called.
func (n *Namespace) Lock(within time.Duration) (unlock func()) {
	f, err := n.reopen()
	if err != nil {
		return func() {} // for lack of descriptors, with which nothing can be done in it either
	}
	for end := time.Now().Add(within); unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil; time.Sleep(lockEvery) {
		if time.Now().After(end) {
			break
		}
	}
	return func() { f.Close() }
}

// reopen opens the namespace once more, as another open file: a lock belongs to one, whoever has it, and the CNI plugin gives
// the same to each node proxy that it asks.
func (n *Namespace) reopen() (f *os.File, err error) {
	err = n.FD(func(fd int) error {
		f, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
		return err
	})
	return f, err
}

// Do runs f on a thread that is in the namespace. What f starts on other goroutines is not.
func (n *Namespace) Do(f func() error) error {
	errs := make(chan error, 1)
	go func() { // of its own: a thread that cannot get back ends with it
		var err error
		defer func() { errs <- err }()
		runtime.LockOSThread()
		if err = n.FD(enter); err != nil {
			runtime.UnlockOSThread()
			err = fmt.Errorf("enter network namespace %s: %w", n.file.Name(), err)
			return
		}
		defer func() {
			if enter(int(n.home.Fd())) == nil {
				runtime.UnlockOSThread()
			}
		}()
		err = errors.New("the function has ended its goroutine")
		err = f()
	}()
	return <-errs
}

func enter(fd int) error {
	err := os.NewSyscallError("setns", unix.Setns(fd, unix.CLONE_NEWNET))
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: give this process the capability SYS_ADMIN", err)
	}
	return err
}

// Control implements the Control of a net.Dialer and of a net.ListenConfig: the socket becomes
// one of the namespace before it is bound or connected.
func (n *Namespace) Control(_, _ string, c syscall.RawConn) error {
	var inner error
	if err := c.Control(func(fd uintptr) { inner = n.replace(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// replace puts a socket of the namespace, of the same kind and with what package net has set, in
// the place of fd. That is not registered with the runtime's poller yet.
func (n *Namespace) replace(fd int) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	s := -1
	err = n.Do(func() (err error) {
		s, err = unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0) // not MPTCP: this is for peers that need none
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return err
	}
	defer unix.Close(s)
	for _, o := range [][2]int{{unix.SOL_SOCKET, unix.SO_REUSEADDR}, {unix.SOL_SOCKET, unix.SO_BROADCAST}, {unix.IPPROTO_IPV6, unix.IPV6_V6ONLY}} {
		if o[0] == unix.IPPROTO_IPV6 && domain != unix.AF_INET6 {
			continue
		}
		v, err := unix.GetsockoptInt(fd, o[0], o[1])
		if err == nil {
			err = unix.SetsockoptInt(s, o[0], o[1], v)
		}
		if err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return os.NewSyscallError("dup3", unix.Dup3(s, fd, unix.O_CLOEXEC))
}
