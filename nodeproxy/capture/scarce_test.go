//go:build linux

package capture

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// With few descriptors left, whatever takes some has an error that says so. With a single one the library that opens
// sockets in a namespace returned none and no error (mdlayher/socket before 0.6.0), and the process crashed.
func TestFewDescriptorsAreAnError(t *testing.T) {
	p := newPod(t)
	must(t, Set(p.ns, mesh))
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), OutboundPort)
	calls := map[string]func() error{
		"SetBy": func() error { _, _, _, err := SetBy(p.ns); return err },
		"Set":   func() error { return Set(p.ns, mesh) },
		"Hold":  func() error { _, err := Hold(p.ns, mesh); return err },
		"Alive": func() error { _, err := Alive(p.ns, at, Setter{}); return err },
		"NewWatch": func() error {
			w, err := NewWatch(p.ns)
			if err == nil {
				w.Close()
			}
			return err
		},
	}
	for n := range 4 {
		for name, call := range calls {
			switch err := withFiles(t, n, call); {
			case n == 0 && err == nil:
				t.Errorf("%s has no error without any descriptor", name)
			case n == 3 && err != nil:
				t.Errorf("%s with %d descriptors: %v", name, n, err)
			case err != nil && !podns.Lacking(err):
				t.Errorf("%s with %d descriptors: %v, which does not say what is lacking", name, n, err)
			}
		}
	}
}

// withFiles calls f while this process can open n files at the same time.
func withFiles(t *testing.T, n int, f func() error) error {
	t.Helper()
	limit := uint64(0)
	for ; n > 0; limit++ {
		if _, err := unix.FcntlInt(uintptr(limit), unix.F_GETFD, 0); err != nil {
			n--
		}
	}
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	must(t, unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: was.Max}, nil))
	err := f()
	must(t, unix.Prlimit(0, unix.RLIMIT_NOFILE, &was, nil))
	return err
}
