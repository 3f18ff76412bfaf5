//go:build linux

package capture

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/nodeproxy/sockdiag"
)

// Of the connections in a pod EndDirect offers those that others opened, accepted or not yet, and resets those that it is
// told to: neither the pod's own, nor those of a node proxy that have the address of their client. The listener may be
// closed, or bound to an interface.
func TestEndDirectResetsWhatOthersOpened(t *testing.T) {
	p := newPod(t)
	type side struct{ client, server net.Conn }
	open := map[string]side{}
	var offered []string
	name := map[netip.AddrPort]string{} // by the client's end
	listen := func(host, at string) net.Listener {
		l, err := p.Listen(host, at)
		must(t, err)
		t.Cleanup(func() { l.Close() })
		return l
	}
	pair := func(what string, l net.Listener, accept bool, dial func(to string) (net.Conn, error)) {
		c, err := dial(l.Addr().String())
		must(t, err)
		s := side{client: c}
		if accept {
			s.server, err = l.Accept()
			must(t, err)
		}
		open[what] = s
		name[c.LocalAddr().(*net.TCPAddr).AddrPort()] = what
	}
	from := func(host string) func(string) (net.Conn, error) {
		return func(to string) (net.Conn, error) { return p.Dial(host, to) }
	}
	untracked := listen("pod", podAddress+":8082")
	pair("others before tracking, listener closed", untracked, true, from("other"))
	must(t, SetSource(p.ns, false))
	must(t, Set(p.ns, Rules{Ranges: mesh.Ranges}))
	fromBefore, to := open["others before tracking, listener closed"], []byte("x")
	_, err := fromBefore.client.Write(to) // the kernel tracks it from the middle on
	must(t, err)
	_, err = fromBefore.server.Read(to)
	must(t, err)
	source := func(to string) (net.Conn, error) { // as a node proxy connects for a client
		d := net.Dialer{Timeout: 5 * time.Second, Control: func(n, a string, c syscall.RawConn) error {
			return errors.Join(p.ns.Control(n, a, c), Mark(n, a, c), Source(netip.MustParseAddr(otherAddress), p.ports(t))(n, a, c))
		}}
		return d.Dial("tcp", to)
	}
	app4, app6 := listen("pod", podAddress+":8080"), listen("pod", "["+pod6+"]:8080")
	pair("others 4", app4, true, from("other"))
	pair("others 6", app6, true, from("other"))
	pair("the pod to itself", app4, true, from("pod"))
	pair("the pod over loopback", listen("pod", "127.0.0.1:8081"), true, from("pod"))
	pair("the pod to another", listen("other", otherAddress+":8080"), true, from("pod"))
	pair("a node proxy for another", app4, true, source)
	pair("others 4, not accepted", app4, false, from("other"))
	tracked := []net.Listener{listen("pod", podAddress+":8083"), listen("pod", "["+pod6+"]:8083")}
	pair("others 4, listener closed", tracked[0], true, from("other"))
	pair("others 6, listener closed", tracked[1], true, from("other"))
	for _, l := range append(tracked, untracked) {
		must(t, l.Close())
	}
	pair("the pod to another, tracked", listen("other", otherAddress+":8081"), true, from("pod"))
	bound := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		e := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptString(int(fd), syscall.SOL_SOCKET, syscall.SO_BINDTODEVICE, "eth0")
		})
		return errors.Join(e, err)
	}}
	var atDevice net.Listener
	must(t, p.In("pod", func() (err error) { atDevice, err = bound.Listen(t.Context(), "tcp4", podAddress+":8084"); return err }))
	defer atDevice.Close()
	pair("others, listener bound to an interface", atDevice, true, from("other"))
	for _, ends := range []bool{false, true} {
		offered = nil
		n, err := EndDirect(p.ns, func(local, remote netip.AddrPort) bool {
			offered = append(offered, name[remote])
			return ends
		})
		must(t, err)
		slices.Sort(offered)
		want := []string{"others 4", "others 4, listener closed", "others 4, not accepted", "others 6", "others 6, listener closed", "others, listener bound to an interface"}
		if !slices.Equal(offered, want) || ends && n != len(want) || !ends && n != 0 {
			t.Fatalf("offered %v and ended %d, want %v", offered, n, want)
		}
		for what, s := range open {
			s.client.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			_, err := s.client.Read(make([]byte, 1))
			timeout, is := err.(net.Error)
			if goesOn := is && timeout.Timeout(); goesOn == (ends && slices.Contains(want, what)) {
				t.Errorf("ends %v: %s: %v", ends, what, err)
			}
		}
	}
}

// failing is the sockets of a pod. Some connections cannot be reset, and others have closed.
type failing map[uint16]error // by the client's port

var errClosed = errors.New("it has closed")

func (f failing) Listens(sockdiag.Connection) (bool, error) { return true, nil }

func (f failing) openedByRemote(local, remote netip.AddrPort) (bool, error) { return true, nil }

func (f failing) End(c sockdiag.Connection) (bool, error) {
	err := f[c.Remote.Port()]
	if errors.Is(err, errClosed) {
		return false, nil
	}
	return err == nil, err
}

// An error about one connection does not keep EndDirect from the others. It names CONFIG_INET_DIAG_DESTROY for a kernel
// that lacks it alone, and each cause once.
func TestEndDirectGoesOnAfterErrors(t *testing.T) {
	own := netip.MustParseAddr(podAddress)
	var list []sockdiag.Connection
	for port := uint16(1); port <= 8; port++ {
		list = append(list, sockdiag.Connection{Local: netip.AddrPortFrom(own, 8080), Remote: netip.AddrPortFrom(netip.MustParseAddr(otherAddress), port)})
	}
	all := func(netip.AddrPort, netip.AddrPort) bool { return true }
	n, err := endDirect(list, []netip.Addr{own}, failing{1: syscall.EINVAL, 2: syscall.EINVAL, 4: syscall.ENOMEM, 5: errClosed}, all)
	if n != 4 || !errors.Is(err, syscall.EINVAL) || !errors.Is(err, syscall.ENOMEM) || errors.Is(err, sockdiag.ErrCannotEnd) {
		t.Errorf("reset %d, %v; want 4, EINVAL and ENOMEM", n, err)
	}
	if text := fmt.Sprint(err); strings.Count(text, "invalid argument") != 1 || strings.Contains(text, "INET_DIAG_DESTROY") {
		t.Errorf("the error is %q", text)
	}
	if n, err := endDirect(list, []netip.Addr{own}, failing{}, all); n != len(list) || err != nil {
		t.Errorf("reset %d, %v; want all", n, err)
	}
}
