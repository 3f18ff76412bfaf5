//go:build linux

package cniplugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cnisocket"
)

// The test's own binary is the plugin, as a runtime starts one: skel reads the environment of its process.
func TestMain(m *testing.M) {
	if os.Getenv("CNI_TEST_PLUGIN") != "" {
		os.Exit(Main("about"))
	}
	if path := os.Getenv("CNI_TEST_SERVER"); path != "" {
		os.Exit(serveAlone(path))
	}
	os.Exit(m.Run())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// node is a node proxy that answers what its verdicts say, one after the other and the last again.
type node struct {
	mu       sync.Mutex
	verdicts []cnisocket.Verdict
	asked    []cnisocket.Request
	hang     atomic.Bool
}

func (n *node) next(r cnisocket.Request) cnisocket.Reply {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, r)
	v := n.verdicts[0]
	n.verdicts = append(n.verdicts[1:], v)[:max(1, len(n.verdicts)-1)]
	return cnisocket.Reply{Verdict: v, Reason: "the reason"}
}

func (n *node) Add(ctx context.Context, r cnisocket.Request, f *os.File) cnisocket.Reply {
	f.Close()
	if n.hang.Load() {
		<-ctx.Done()
	}
	return n.next(r)
}
func (n *node) Check(r cnisocket.Request) cnisocket.Reply { return n.next(r) }
func (n *node) Delete(r cnisocket.Request)                { n.next(r) }
func (n *node) Retain(c []string) {
	n.next(cnisocket.Request{Command: cnisocket.Retain, Containers: c})
}

// requests are those of a command.
func (n *node) requests(c cnisocket.Command) (out []cnisocket.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.asked {
		if r.Command == c {
			out = append(out, r)
		}
	}
	return out
}

func serve(t *testing.T, verdicts ...cnisocket.Verdict) (*node, string) {
	t.Helper()
	netspace.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "cni.sock")
	n := &node{verdicts: verdicts}
	s, err := cnisocket.Listen(path, n, func(err error) {
		if !errors.Is(err, io.EOF) { // of a plugin that had connected when its time was over, and asked nothing
			t.Error(err)
		}
	})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return n, path
		}
	}
	t.Fatal("the server has not taken its name")
	return nil, ""
}

const prev = `{"cniVersion":"1.0.0","interfaces":[{"name":"veth1"},{"name":"eth0","sandbox":"/run/netns/a"},{"name":"eth1","sandbox":"/run/netns/a"}],"ips":[{"interface":1,"address":"10.0.0.7/24"},{"interface":1,"address":"fd00::7/64"},{"interface":2,"address":"192.168.0.7/24"}]}`

const podArgs = "IgnoreUnknown=1;K8S_POD_NAMESPACE=demo;K8S_POD_NAME=shop;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=0a1b2c3d-0000-0000-0000-000000000001"

// run calls the plugin with a configuration that has more in it, and returns what it prints.
func run(t *testing.T, command, args, more string) (out string, code int, said string) {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe)
	cmd.Env = []string{"CNI_TEST_PLUGIN=yes", "CNI_COMMAND=" + command, "CNI_CONTAINERID=c1", "CNI_NETNS=" + netns(t), "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin", "CNI_ARGS=" + args, "CNI_NETNS_OVERRIDE=1"}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.1.0","name":"pods","type":"isthmus-cni"` + more + `}`)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if _, exit := err.(*exec.ExitError); err != nil && !exit {
		t.Fatal(err)
	}
	return stdout.String(), cmd.ProcessState.ExitCode(), stderr.String()
}

// netns is a namespace that is not the test's own to the plugin; it never looks into it.
func netns(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("/proc/%d/ns/net", os.Getpid())
}

// refused returns the error that the plugin prints.
func refused(t *testing.T, out string, code int) (e struct {
	Code         uint
	Msg, Details string
}) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &e); err != nil || code == 0 || e.Msg == "" {
		t.Fatalf("want an error of CNI, got code %d and %s", code, out)
	}
	return e
}

func TestAddWaitsForTheNodeProxyAndPrintsWhatItWasGiven(t *testing.T) {
	n, path := serve(t, cnisocket.Stopping, cnisocket.Captured)
	out, code, said := run(t, "ADD", podArgs, fmt.Sprintf(`,"socket":%q,"runtimeConfig":{"dns":{"servers":["10.96.0.10"],"searches":["a"],"options":["ndots:5"]}},"prevResult":%s`, path, prev))
	if code != 0 || said != "" {
		t.Fatalf("code %d: %s %s", code, out, said)
	}
	var got struct {
		CNIVersion string `json:"cniVersion"`
		IPs        []any  `json:"ips"`
		Interfaces []any  `json:"interfaces"`
	}
	must(t, json.Unmarshal([]byte(out), &got))
	if len(got.IPs) != 3 || len(got.Interfaces) != 3 || got.CNIVersion != "1.1.0" {
		t.Errorf("prints %s", out)
	}
	asked := n.requests(cnisocket.Add)
	if len(asked) != 2 {
		t.Fatalf("asked %d times, want again after the one that stops", len(asked))
	}
	r := asked[1]
	want := []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")}
	if r.Namespace != "demo" || r.Name != "shop" || r.UID != "0a1b2c3d-0000-0000-0000-000000000001" || r.Container != "c1" || !slices.Equal(r.Addresses, want) || r.DNS == nil || r.DNS.Servers[0] != "10.96.0.10" {
		t.Errorf("announced %+v", r)
	}
}

// What becomes of a pod that is not captured is as configured, and nobody waits longer than that.
func TestWhoIsNotCaptured(t *testing.T) {
	with := func(path, policy string) string {
		return fmt.Sprintf(`,"socket":%q,"timeout":"300ms","failurePolicy":%q,"prevResult":%s`, path, policy, prev)
	}
	absent := filepath.Join(t.TempDir(), "nobody.sock")
	for name, c := range map[string]struct {
		verdict cnisocket.Verdict // "": no node proxy is there
		hang    bool
		policy  string
		starts  bool
		says    string
	}{
		"not in the mesh":                {cnisocket.Outside, false, Fail, true, ""},
		"failed, Ignore":                 {cnisocket.Failed, false, Ignore, true, "failed: the reason"},
		"failed, Fail":                   {cnisocket.Failed, false, Fail, false, "failed: the reason"},
		"unknown, Fail":                  {cnisocket.Unknown, true, Fail, false, "unknown: the reason"},
		"no node proxy, Ignore":          {"", false, Ignore, true, "no node proxy answers at " + absent},
		"no node proxy, Fail":            {"", false, Fail, false, "no node proxy answers at " + absent},
		"one that goes on to stop, Fail": {cnisocket.Stopping, false, Fail, false, "the reason"},
	} {
		path := absent
		if c.verdict != "" {
			n, at := serve(t, c.verdict)
			path = at
			n.hang.Store(c.hang)
		}
		began := time.Now()
		out, code, said := run(t, "ADD", podArgs, with(path, c.policy))
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%s: takes %v", name, took)
		}
		if !c.starts {
			if e := refused(t, out, code); e.Code != 11 || !strings.Contains(e.Details, c.says) || !strings.Contains(e.Msg, "demo/shop") {
				t.Errorf("%s: %+v, want %q", name, e, c.says)
			}
			continue
		}
		if code != 0 || !strings.Contains(out, "10.0.0.7") || !strings.Contains(said, c.says) || c.says == "" && said != "" {
			t.Errorf("%s: code %d, %s; says %q, want %q", name, code, out, said, c.says)
		}
	}
}

// A node proxy that comes while a pod waits is heard.
func TestANodeProxyThatComesLate(t *testing.T) {
	netspace.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "cni.sock")
	n := &node{verdicts: []cnisocket.Verdict{cnisocket.Captured}}
	s, err := cnisocket.Listen(path, n, func(error) {})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	later := time.AfterFunc(300*time.Millisecond, func() { done <- s.Run(ctx) })
	defer later.Stop()
	out, code, said := run(t, "ADD", podArgs, fmt.Sprintf(`,"socket":%q,"failurePolicy":"Fail","prevResult":%s`, path, prev))
	if code != 0 {
		t.Errorf("code %d: %s %s", code, out, said)
	}
	cancel()
	must(t, <-done)
}

// Who cannot be in the mesh waits for nobody, so a node proxy that is a pod itself can start.
func TestWhoNeverWaits(t *testing.T) {
	more := fmt.Sprintf(`,"socket":"/nowhere/cni.sock","timeout":"20s","failurePolicy":"Fail","excludeNamespaces":["kube-system","demo"],"prevResult":%s`, prev)
	for name, args := range map[string]string{
		"an excluded namespace": podArgs,
		"a static pod":          "K8S_POD_NAMESPACE=other;K8S_POD_NAME=etcd;K8S_POD_UID=9c2f1c3e0a5d4d6f8e7b6a5c4d3e2f1a",
		"none of Kubernetes":    "",
	} {
		began := time.Now()
		if out, code, _ := run(t, "ADD", args, more); code != 0 || time.Since(began) > 10*time.Second {
			t.Errorf("%s: code %d after %v: %s", name, code, time.Since(began), out)
		}
	}
}

// Nobody is to take for captured what a runtime starts without saying which pod it is.
func TestAddUnderFailSaysThatWhatIsNoPodDoesNotWait(t *testing.T) {
	const none = "isthmus-cni: CNI_ARGS has no K8S_POD_UID, so that container c1 is taken for no pod of Kubernetes, and starts without waiting, with failurePolicy Fail too\n"
	for _, c := range []struct{ command, args, policy, want string }{
		{"ADD", "", "Fail", none},
		{"ADD", "K8S_POD_NAMESPACE=demo;K8S_POD_NAME=shop", "Fail", none}, // of a runtime that does not say the UID
		{"ADD", "K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=dns", "Fail", ""},
		{"ADD", "", "Ignore", ""},
		{"CHECK", "", "Fail", ""},
		{"DEL", "", "Fail", ""},
	} {
		more := fmt.Sprintf(`,"socket":"/nowhere/cni.sock","failurePolicy":%q,"excludeNamespaces":["kube-system"],"prevResult":%s`, c.policy, prev)
		if out, code, said := run(t, c.command, c.args, more); code != 0 || said != c.want {
			t.Errorf("%s of %q with %s: code %d, says %q, want %q: %s", c.command, c.args, c.policy, code, said, c.want, out)
		}
	}
}

func TestDeleteNeverFailsAndTheOthersDoWhatTheyShould(t *testing.T) {
	for _, more := range []string{`,"socket":"/nowhere/cni.sock"`, `,"socket":"relative"`, `,"failurePolicy":"Nonsense"`, ""} {
		if out, code, _ := run(t, "DEL", podArgs, more); code != 0 {
			t.Errorf("DEL with %s: code %d, %s", more, code, out)
		}
	}
	n, path := serve(t, cnisocket.Failed)
	at := fmt.Sprintf(`,"socket":%q`, path)
	if out, code, _ := run(t, "DEL", podArgs, at); code != 0 || len(n.requests(cnisocket.Delete)) != 1 {
		t.Errorf("DEL: code %d, %s", code, out)
	}
	if out, code, _ := run(t, "CHECK", podArgs, at+`,"prevResult":`+prev); code != 0 {
		t.Errorf("CHECK with Ignore: code %d, %s", code, out)
	}
	out, code, _ := run(t, "CHECK", podArgs, at+`,"failurePolicy":"Fail","prevResult":`+prev)
	if e := refused(t, out, code); !strings.Contains(e.Details, "the reason") {
		t.Errorf("CHECK: %+v", e)
	}
	if out, code, _ := run(t, "CHECK", podArgs, `,"socket":"/nowhere/cni.sock","failurePolicy":"Fail","prevResult":`+prev); code != 0 {
		t.Errorf("CHECK without a node proxy: code %d, %s", code, out)
	}
	if out, code, _ := run(t, "GC", "", at+`,"cni.dev/valid-attachments":[{"containerID":"c7","ifname":"eth0"}]`); code != 0 || len(n.requests(cnisocket.Retain)) != 1 || n.requests(cnisocket.Retain)[0].Containers[0] != "c7" {
		t.Errorf("GC: code %d, %s", code, out)
	}
	if out, code, _ := run(t, "STATUS", "", `,"socket":"/nowhere/cni.sock","failurePolicy":"Fail"`); code != 0 {
		t.Errorf("STATUS without a node proxy: code %d, %s", code, out)
	}
	if out, code, _ := run(t, "VERSION", "", ""); code != 0 || !strings.Contains(out, `"1.1.0"`) || !strings.Contains(out, `"0.3.1"`) {
		t.Errorf("VERSION: code %d, %s", code, out)
	}
}

// What the plugins before give the pod is theirs: with Ignore a pod starts with it, whatever it is.
func TestAPodWithoutAnAddressStartsWithIgnore(t *testing.T) {
	for _, prev := range []string{
		`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/a"}]}`,
		`{"cniVersion":"1.0.0","interfaces":[{"name":"net1","sandbox":"/run/netns/a"}],"ips":[{"interface":0,"address":"10.0.0.7/24"}]}`,
	} {
		out, code, said := run(t, "ADD", podArgs, `,"socket":"/nowhere/cni.sock","prevResult":`+prev)
		if code != 0 || !strings.Contains(out, `"sandbox": "/run/netns/a"`) || !strings.Contains(said, "pod demo/shop starts before it is captured (failurePolicy Ignore): prevResult has no address for the pod: none of its ") {
			t.Errorf("%s: code %d, %s, says %q", prev, code, out, said)
		}
	}
}

// Whatever hangs: who listens and does not answer, and who does not even listen to whom it has let in.
func TestASocketThatDoesNotAnswerHoldsNobodyLonger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cni.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: path})
	must(t, err)
	defer l.Close()
	for _, c := range []struct{ command, more string }{{"ADD", `,"prevResult":` + prev}, {"DEL", ""}, {"CHECK", `,"failurePolicy":"Fail","prevResult":` + prev}, {"GC", ""}} {
		began := time.Now()
		out, code, _ := run(t, c.command, podArgs, fmt.Sprintf(`,"socket":%q,"timeout":"300ms"%s`, path, c.more))
		if took := time.Since(began); code != 0 || took > 3*time.Second {
			t.Errorf("%s: code %d after %v, %s", c.command, code, took, out)
		}
	}
}

func TestBadInputIsAnErrorOfCNI(t *testing.T) {
	for more, want := range map[string]string{
		`,"socket":"relative","prevResult":` + prev:     `socket "relative" is no absolute path`,
		`,"timeout":"5","prevResult":` + prev:           `timeout "5" is no duration`,
		`,"timeout":"1h","prevResult":` + prev:          `timeout "1h" is no duration`,
		`,"failurePolicy":"Maybe","prevResult":` + prev: `failurePolicy "Maybe" is unknown: use Ignore or Fail`,
		``: "put it behind one",
		`,"failurePolicy":"Fail","prevResult":{"cniVersion":"1.0.0","ips":[]}`: "see what the plugins before isthmus-cni",
		`,"prevResult":{"cniVersion":"1.0.0","ips":"no"}`:                      "cannot unmarshal",
	} {
		out, code, _ := run(t, "ADD", podArgs, more)
		if e := refused(t, out, code); !strings.Contains(e.Details, want) {
			t.Errorf("%s: %+v, want %q", more, e, want)
		}
	}
}

// A key that nobody knows is said on standard error, which runtimes put into their logs, and stops nothing. Those that
// runtimes and lists have are not.
func TestAKeyThatNobodyKnowsIsSaid(t *testing.T) {
	const silent = `,"socket":"/nowhere/cni.sock","timeout":"100ms","FailurePolicy":"Ignore","excludeNamespaces":["demo"],"capabilities":{"dns":true},"runtimeConfig":{"dns":{}},"args":{"cni":{}},"ipMasq":true,"ipam":{},"dns":{},"disableCheck":true,"cni.dev/attachments":[],"_comment":"x","prevResult":` + prev
	for more, want := range map[string]string{
		"": "",
		`,"failurePolcy":"Fail","wait":"5s"`: `isthmus-cni: the network configuration has the key "failurePolcy", which is unknown and counts for nothing: did you mean "failurePolicy"?
isthmus-cni: the network configuration has the key "wait", which is unknown and counts for nothing: known are socket, timeout, failurePolicy, excludeNamespaces
`,
	} {
		for _, command := range []string{"ADD", "CHECK", "STATUS"} {
			if out, code, said := run(t, command, podArgs, silent+more); code != 0 || said != want {
				t.Errorf("%s with %q: code %d, says %q, want %q: %s", command, more, code, said, want, out)
			}
		}
	}
}

// The deadline ends the last question: it is not the reason, that is what the node proxy said before.
func TestTheReasonIsNotTheDeadline(t *testing.T) {
	_, path := serve(t, cnisocket.Stopping)
	c := &call{Config: Config{Socket: path}, timeout: 25 * time.Millisecond}
	for range 300 {
		r := cnisocket.Request{Command: cnisocket.Add, UID: "0a1b2c3d", Container: "c", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
		if err := c.announce(r, netns(t)); err == nil || strings.Contains(err.Error(), "timeout") {
			t.Fatalf("the reason is %v", err)
		}
	}
}
