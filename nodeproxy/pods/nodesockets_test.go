//go:build linux

package pods

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What could not be asked once, as when no descriptors are left, is asked again: until then probes are refused.
func TestTheNodesSocketsAreAskedAgainAfterAFault(t *testing.T) {
	proc := t.TempDir()
	link := filepath.Join(proc, "1/ns/net")
	if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("net", link); err != nil { // a loop
		t.Fatal(err)
	}
	n := nodeSockets{proc: proc}
	defer n.close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ends := func(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }
	if _, err := n.has(ends(c.RemoteAddr()), netip.MustParseAddrPort("127.0.0.1:1")); err == nil {
		t.Fatal("no error while the node's namespace cannot be opened")
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/self/ns/net", link); err != nil {
		t.Fatal(err)
	}
	none := netip.MustParseAddrPort("127.0.0.1:1")
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		there, err := n.has(ends(c.LocalAddr()), none)
		if !there && err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("once it can be opened: %v, %v", there, err)
		}
	}
	if there, err := n.has(ends(c.LocalAddr()), ends(c.RemoteAddr())); !there || err != nil {
		t.Errorf("a connection of the node's: %v, %v", there, err)
	}
}
