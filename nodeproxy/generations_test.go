//go:build linux

package nodeproxy

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// Without privileges, generations of a node proxy take over from each other: the older one gets all connections until the
// newer one is ready, and the newer one gets all of them then.
func TestOlderProcessKeepsConnectionsUntilReady(t *testing.T) {
	const child = "ISTHMUS_TEST_UNPRIVILEGED"
	if os.Geteuid() == 0 && os.Getenv(child) == "" {
		t.Run("privileged", olderKeepsConnections)
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env, cmd.Dir = append(os.Environ(), child+"=1"), "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("as user 65534: %v\n%s", err, out)
		}
		return
	}
	olderKeepsConnections(t)
}

func olderKeepsConnections(t *testing.T) {
	p := &Proxy{log: zerolog.New(zerolog.NewTestWriter(t))}
	at := netip.MustParseAddrPort("127.0.0.1:0")
	open := func() (*sharedListener, *atomic.Int64) {
		l, err := listenShared(at, "socks")
		if err != nil {
			t.Fatal(err)
		}
		at = netip.MustParseAddrPort(l.Addr().String())
		accepted := &atomic.Int64{}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				accepted.Add(1)
				c.Close()
			}
		}()
		return l, accepted
	}
	const n = 30
	all := func(when string, accepted *atomic.Int64) {
		t.Helper()
		before := accepted.Load()
		for range n {
			c, err := net.Dial("tcp", at.String())
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			c.Close()
		}
		for end := time.Now().Add(time.Second); accepted.Load()-before < n && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if got := accepted.Load() - before; got != n {
			t.Errorf("%s: %d of %d connections come to the process that is to get all", when, got, n)
		}
	}
	older, accepted := open()
	p.takeOver(older)
	for generation := range 4 {
		newer, acceptedNewer := open()
		all("the newer process is not ready", accepted)
		if generation == 2 { // it ends before it is ready
			newer.Close()
			all("the newer process has ended", accepted)
			newer, acceptedNewer = open()
			all("the process after that is not ready", accepted)
		}
		p.takeOver(newer)
		all("the newer process is ready", acceptedNewer)
		handOver(older)
		all("the older process has ended", acceptedNewer)
		older, accepted = newer, acceptedNewer
	}
	older.Close()
}
