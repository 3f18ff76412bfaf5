package lab

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

const holed = "kind: blackhole, target: {network: west, names: [west-2]}"

func TestPacketsVanishBothWaysAndComeBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("needs root: what others are told is in TestWithoutRootABlackholeIsRefusedInWords")
		return
	}
	st := newStarter()
	defer st.close()
	n, err := networkFor(tinyScenario(t, "FAULT", holed), st)
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	addr := netip.MustParseAddrPort("127.9.9.9:7000")
	l, err := n.listen(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // an echo
				b := make([]byte, 64)
				for {
					k, err := c.Read(b)
					if err != nil {
						c.Close()
						return
					}
					c.Write(b[:k])
				}
			}()
		}
	}()
	if c, err := (*network)(nil).dial(t.Context(), time.Now().Add(time.Second), addr); err == nil {
		c.Close()
		t.Error("the drill's network is not its own")
	}
	c, err := n.dial(t.Context(), time.Now().Add(10*time.Second), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := n.probeFor(t.Context(), addr, "answers"); got != "answers" {
		t.Errorf("before: %s", got)
	}
	if err := n.vanish(addr.Addr(), true); err != nil {
		t.Fatal(err)
	}
	if got := n.probeFor(t.Context(), addr, "hangs"); got != "hangs" {
		t.Errorf("a new connection: %s, want no answer at all", got)
	}
	if got := n.probeFor(t.Context(), netip.MustParseAddrPort("127.9.9.10:7000"), "refused"); got != "refused" {
		t.Errorf("another address: %s", got)
	}
	c.Write([]byte("x"))
	c.SetReadDeadline(time.Now().Add(look))
	if _, err := c.Read(make([]byte, 1)); !timedOut(err) {
		t.Errorf("an open connection: %v, want silence", err)
	}
	if err := n.vanish(addr.Addr(), false); err != nil {
		t.Fatal(err)
	}
	if got := n.probeFor(t.Context(), addr, "answers"); got != "answers" {
		t.Errorf("after: %s", got)
	}
	c.SetReadDeadline(time.Now().Add(30 * time.Second)) // the kernel sends again
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Errorf("the open connection after: %v", err)
	}
}

// A request that was given up may still be dialing when the drill is over.
func TestANetworkEndsBehindThoseWhoUseIt(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("needs root: others have no network of their own")
		return
	}
	st := newStarter()
	defer st.close()
	n, err := newNetwork(st)
	if err != nil {
		t.Fatal(err)
	}
	inside, leave, left := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() { left <- n.in(func() error { close(inside); <-leave; return nil }) }()
	<-inside
	closed := make(chan struct{})
	go func() { n.close(); close(closed) }()
	for n.in(func() error { return nil }) == nil { // until it is being closed
	}
	select {
	case <-closed:
		t.Error("closed while it is used")
	default:
	}
	close(leave)
	if err := <-left; err != nil {
		t.Error(err)
	}
	<-closed
	if err := n.in(func() error { return nil }); !errors.Is(err, errNetworkClosed) {
		t.Errorf("after its end: %v", err)
	}
}

func TestWithoutRootABlackholeIsRefusedInWords(t *testing.T) {
	dir, err := os.MkdirTemp("", "drill-") // t.TempDir is closed to others
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o777)
	for _, name := range []string{"isthmus", "gateway", "nodeproxy"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text := strings.NewReplacer("EXCHANGE", "request", "ATTEMPTS", "5", "FAULT", holed).Replace(tiny)
	path := filepath.Join(dir, "tiny.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("/proc/self/exe")
	c.Args = []string{"runner", dir, path, filepath.Join(dir, "out")}
	if os.Geteuid() == 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, _ := c.CombinedOutput()
	for _, want := range []string{"the fault f (blackhole)", "needs root", "run the drill as root, or take a fault that does not"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("told %q, want %q", out, want)
		}
	}
}

func TestOnlyABlackholeNeedsRoot(t *testing.T) {
	s := tinyScenario(t)
	for _, k := range []scenario.Kind{scenario.Refuse, scenario.Silent, scenario.Hang, scenario.Slow, scenario.Flap, scenario.PodKill, scenario.GatewayKill, scenario.NodeProxyKill, scenario.Freeze, scenario.FederationCut} {
		s.Faults[0].Kind = k
		if n, err := networkFor(s, nil); n != nil || err != nil {
			t.Errorf("%s: got a network of its own, %v", k, err)
		}
	}
}

func TestFrozenProcessesEndWithTheDrill(t *testing.T) {
	_, _, err := run(t, t.Context(), tinyScenario(t, "until: 2s, ", "", "FAULT", "kind: freeze, target: {network: west, pods: all}"), nil)
	if err != nil {
		t.Fatal(err)
	}
}
