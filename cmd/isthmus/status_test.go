package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// With the only gateway of west away, nothing is known of west: that is not the same as
// nothing to tell.
func TestStatusShowsWhatIsUnknownAndWhichGatewayIsOut(t *testing.T) {
	s := describe(t)
	s.Write()
	s.StartGateway("east", "gw-1")
	east1 := s.StartNode("east", "east-1")
	east1.AwaitReady(t)
	row := func(text string) string {
		for line := range strings.Lines(text) {
			if f := strings.Fields(line); len(f) > 4 && f[0] == "west" {
				return strings.Join(f[:5], " ")
			}
		}
		return ""
	}
	meshtest.Eventually(t, "the row of west has ? and its gateway is out", func() bool {
		meshtest.Hello(s.at)
		code, out, _ := isthmus(t, "status", "--admin", east1.Admin.String())
		return row(out) == "west "+hello+" 80 ? ?" && strings.Contains(out, "all of it (none of its gateways can be reached: connect)") && strings.Contains(out, "gateway gw-1 of network west out (connect, ") && code == exitFinding
	})
	s.Start()
	meshtest.Eventually(t, "all is known", func() bool {
		code, out, _ := isthmus(t, "status", "--admin", east1.Admin.String())
		return code == exitOK && row(out) == "west "+hello+" 80 2 2" && !strings.Contains(out, "gateway ")
	})
	d, err := keyfile.Open(s.Keys("west").Dir)
	if err != nil {
		t.Fatal(err)
	}
	_, out, _ := isthmus(t, "status", "--admin", s.Process("gateway east/gw-1").Admin.String())
	wantIn(t, out, "keys believed of network west: "+d.Key.Public().Fingerprint()+" (certifies gw-1)\n")
	s.Process("gateway west/gw-1").Stop(t)
	meshtest.Eventually(t, "what its gateway said last helps nobody", func() bool {
		meshtest.Hello(s.at)
		code, out, _ := isthmus(t, "status", "--admin", east1.Admin.String())
		return code == exitFinding && row(out) == "west "+hello+" 80 2 ?" && strings.Contains(out, "none of its gateways can be reached: connect")
	})
}

// "Exit codes: 0 all is known and healthy". A gateway that no node proxy has attached to
// knows nothing of what its pods' applications do.
func TestStatusOfAGatewayThatKnowsNothingIsAFinding(t *testing.T) {
	s := describe(t)
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	gw.AwaitReady(t)
	status := func() (int, string) {
		code, out, _ := isthmus(t, "status", "--admin", gw.Admin.String())
		return code, out
	}
	if code, out := status(); code != exitFinding || !strings.Contains(out, "no health stream from the node proxy of west-1, west-2:") {
		t.Errorf("no node proxy of west has said a word, and there is none; status exits with %d:\n%s", code, out)
	}
	s.StartNode("west", "west-1")
	meshtest.Eventually(t, "west-2 alone is not heard of", func() bool {
		code, out := status()
		return code == exitFinding && strings.Contains(out, "no health stream from the node proxy of west-2:")
	})
}

func TestStatusOfANodeProxyShowsItsOwnPodsThatAreOut(t *testing.T) {
	s := newSite(t)
	if err := s.apps[0].Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	west1 := s.Process("node proxy west-1").Admin.String()
	meshtest.Eventually(t, "the pod is out beside its node proxy", func() bool {
		meshtest.Hello(s.at)
		code, out, _ := isthmus(t, "status", "--admin", west1)
		return code == exitFinding && strings.Contains(out, "west/default/hello-1:8080 (refused, ")
	})
}

func TestStatusOfNothingSaysSoAndOfNoGatewayIsAFinding(t *testing.T) {
	for _, x := range []struct {
		s    answer.Status
		code int
		want []string
	}{
		{answer.Status{Process: "gateway g", Network: "east"}, exitOK, []string{"no pod of network east serves anything"}},
		{answer.Status{Process: "node proxy n", Network: "east"}, exitOK, []string{"no pod of this node uses a service"}},
		{answer.Status{Process: "node proxy n", Network: "east", Captured: new(0)}, exitOK, []string{"no pod of this node is captured", "hostNetwork"}},
		{answer.Status{Process: "node proxy n", Network: "east", Captured: new(3)}, exitOK, []string{"captured pods of this node: 3", "SERVICE.NAMESPACE.mesh.internal"}},
		{answer.Status{Process: "node proxy n", Captured: new(0), Uncaptured: []string{"pod a is not captured: odd"}, Problems: []string{"pod a is not captured: odd"}}, exitFinding, []string{"problem: pod a is not captured: odd\nno pod of this node is captured, for the problems above, and none uses a service\n"}},
		{answer.Status{Process: "node proxy n", Captured: new(2), Nameless: 2}, exitOK, []string{"captured pods of this node: 2; none has asked for a service yet, and names are not answered in them", "call a virtual address from such a pod\n"}},
		{answer.Status{Process: "node proxy n", Captured: new(3), Nameless: 1}, exitOK, []string{"captured pods of this node: 3, in 1 of which names are not answered", "SERVICE.NAMESPACE.mesh.internal"}},
		{answer.Status{Process: "node proxy n", Releasing: true}, exitOK, []string{"capture.scope: release", "taken out of the pods of this node"}},
		{answer.Status{Process: "node proxy n", Network: "east", Detached: true}, exitFinding, []string{"no health stream to a gateway of network east"}},
		{answer.Status{Problems: []string{"a: b\nc: d\x1b"}}, exitFinding, []string{"problem: a: b\n    \"c: d\\x1b\"\n"}},
		{answer.Status{Warnings: []string{"a policy\x1b selects no workload"}}, exitOK, []string{`warning: "a policy\x1b selects no workload"` + "\n"}},
		{answer.Status{Unrouted: []string{"service a\x1b has no virtual address"}}, exitOK, []string{`warning: "service a\x1b has no virtual address"` + "\n"}},
		{answer.Status{Process: "node proxy n", Unguarded: []string{"pod a: STRICT", "pod b: a policy\x1b (ALLOW)", "3", "4", "5", "6", "7", "8", "9", "10"}}, exitOK, []string{"\nwarning: pod a: STRICT\n", `warning: "pod b: a policy\x1b (ALLOW)"` + "\n", "warning: 8\nwarning: plain text goes past the policies of 2 more pods (-o json has all)\n"}},
		{answer.Status{Network: "west", Keys: []answer.Key{{Fingerprint: "f1", Signs: true}, {Fingerprint: "f2"}}}, exitOK, []string{"keys of network west: f1 signs, f2 listed\n"}},
		{answer.Status{Gateways: []answer.Gateway{{Network: "west", Name: "gw-1", Reason: "connect"}}}, exitFinding, []string{"gateway gw-1 of network west out (connect, -)"}},
		{answer.Status{Services: []answer.Row{{Unknown: true}}}, exitFinding, []string{"?", "nothing is known of it: used all the same"}},
		{answer.Status{Services: []answer.Row{{Unreached: "connect"}}}, exitFinding, []string{"?", "all of it (none of its gateways can be reached: connect)"}},
		{answer.Status{Services: []answer.Row{{Draining: true}}}, exitFinding, []string{"draining"}},
	} {
		code, out, _ := isthmus(t, "status", "--admin", answering(t, &x.s).Listener.Addr().String())
		if code != x.code {
			t.Errorf("%+v: exit %d, want %d", x.s, code, x.code)
		}
		wantIn(t, out, x.want...)
		if len(x.s.Services) == 0 && strings.Contains(out, "NETWORK") {
			t.Errorf("a bare header:\n%s", out)
		}
	}
}

func answering(t *testing.T, with any) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(with) }))
	t.Cleanup(s.Close)
	return s
}

func TestOneDeadAddressTakesNoAnswerAway(t *testing.T) {
	s := newSite(t)
	nobody := s.Addr().String() + ":1"
	code, out, errs := isthmus(t, "status", "--admin", nobody+","+s.gateway)
	if code != exitStart {
		t.Errorf("exit %d, want %d", code, exitStart)
	}
	wantIn(t, out, "gateway gw-1 on network west", hello)
	wantIn(t, errs, nobody, "connection refused")
	code, out, errs = isthmus(t, "explain", "east/default/shop-1", hello+":80", "--admin", s.east1+","+nobody)
	if code != exitStart {
		t.Errorf("exit %d, want %d", code, exitStart)
	}
	wantIn(t, out, "node proxy east-1 on network east", "network west in")
	wantIn(t, errs, nobody)
}

// shared is a buffer that one goroutine writes and another reads.
type shared struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// upDown is an admin port that can go away, by an error or by refusing connections.
type upDown struct {
	t       *testing.T
	address string
	refuse  bool // rather than answering with an error

	mu     sync.Mutex
	dead   bool
	server *http.Server
}

func (u *upDown) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.dead {
		http.Error(w, `{"error":"gone"}`, http.StatusServiceUnavailable)
		return
	}
	json.NewEncoder(w).Encode(answer.Status{Process: "node proxy n", Network: "east"})
}

func (u *upDown) set(dead bool) {
	u.t.Helper()
	u.mu.Lock()
	u.dead = dead
	u.mu.Unlock()
	switch {
	case u.server != nil && dead && u.refuse:
		u.server.Close()
		u.server = nil
	case u.server == nil:
		l, err := net.Listen("tcp4", u.address)
		if err != nil {
			u.t.Fatal(err)
		}
		u.address = l.Addr().String()
		u.server = &http.Server{Handler: u}
		go u.server.Serve(l)
	}
}

func TestFollowingSaysWhoCannotBeAskedAndWhoIsBack(t *testing.T) {
	for name, refuse := range map[string]bool{"an error": false, "a refused connection": true} {
		t.Run(name, func(t *testing.T) {
			u := &upDown{t: t, address: "127.0.0.1:0", refuse: refuse}
			u.set(false)
			t.Cleanup(func() { u.server.Close() })
			ctx, stop := context.WithCancel(t.Context())
			var out, errs shared
			done := make(chan int)
			go func() { done <- run(ctx, []string{"status", "-w", "--admin", u.address}, &out, &errs) }()
			meshtest.Eventually(t, "it prints", func() bool { return strings.Count(out.String(), "node proxy n") == 1 })
			u.set(true)
			meshtest.Eventually(t, "it says who is gone", func() bool { return strings.Contains(errs.String(), u.address+" cannot be asked since ") })
			time.Sleep(1500 * time.Millisecond) // it asks again in this time, and must not repeat itself
			u.set(false)
			meshtest.Eventually(t, "it says who is back, and prints again", func() bool {
				return strings.Contains(errs.String(), u.address+" answers again") && strings.Count(out.String(), "node proxy n") == 2
			})
			stop()
			if code := <-done; code != exitOK {
				t.Errorf("exit %d", code)
			}
			if n := strings.Count(errs.String(), "cannot be asked"); n != 1 {
				t.Errorf("said %d times:\n%s", n, errs.String())
			}
			if refuse && !strings.Contains(errs.String(), "refused") {
				t.Errorf("it does not say why:\n%s", errs.String())
			}
		})
	}
}

// What nobody vouches for any more is a last word, and says how old it is: at the
// gateway that heard it, and at a node proxy that was told.
func TestStatusAndExplainSayHowOldALastWordIs(t *testing.T) {
	s := newSite(t)
	if _, err := meshtest.Hello(s.at); err != nil {
		t.Fatal(err)
	}
	east := s.Process("gateway east/gw-1").Admin.String()
	s.Process("gateway west/gw-1").Stop(t)
	meshtest.Eventually(t, "the gateway of east hears west no more", func() bool {
		code, out, _ := isthmus(t, "status", "--admin", east)
		return code == exitFinding && strings.Contains(out, "gateway gw-1 of network west silent (last word ")
	})
	meshtest.Eventually(t, "the node proxy of east is told", func() bool {
		code, out, _ := isthmus(t, "status", "--admin", s.east1)
		return code == exitFinding && strings.Contains(out, "(last word ")
	})
	_, out, _ := isthmus(t, "explain", "east/default/shop-1", hello+":80", "--admin", s.east1)
	wantIn(t, out, "its gateways fell silent ", " ago: this is their last word")
}

// Reasons and names come from other nodes and networks, and go to somebody's terminal.
func TestReasonsOfOthersCannotRewriteTheTable(t *testing.T) {
	odd := "\x1b[2J\x1b[Hgateway gw-1 on network west\nall is well\n"
	now := time.Now()
	text := statusText([]answer.Status{{Process: "gateway gw-1", Network: "west", Now: now, Services: []answer.Row{{Row: standing.Row{
		Network: "west", Service: "hello", Port: 80, Ready: 2, Healthy: 1, Out: []standing.Out{{Endpoint: "hello-1", Reason: odd, Witness: odd}, {Endpoint: "hello-2", Reason: "refused"}},
	}}}}})
	if strings.Contains(text, "\x1b") || strings.Contains(text, "\nall is well") {
		t.Errorf("the table has the escapes and lines of a reason:\n%q", text)
	}
	if !strings.Contains(text, "hello-2 (refused, ") {
		t.Errorf("a plain reason is not as it is:\n%s", text)
	}
}

// Whoever follows a process that is about to start need not start again.
func TestFollowingBeginsBeforeAnybodyCanBeAsked(t *testing.T) {
	u := &upDown{t: t, address: "127.0.0.1:0", refuse: true}
	u.set(false)
	u.set(true)
	t.Cleanup(func() { u.server.Close() })
	ctx, stop := context.WithCancel(t.Context())
	var out, errs shared
	done := make(chan int, 1)
	go func() { done <- run(ctx, []string{"status", "-w", "--admin", u.address}, &out, &errs) }()
	meshtest.Eventually(t, "it says who cannot be asked", func() bool { return strings.Contains(errs.String(), u.address+" cannot be asked since ") })
	u.set(false)
	meshtest.Eventually(t, "it prints", func() bool { return strings.Contains(out.String(), "node proxy n") })
	stop()
	if code := <-done; code != exitOK {
		t.Errorf("exit %d", code)
	}
}

func TestReasonsOfOthersCannotRewriteAnExplanation(t *testing.T) {
	odd := "\x1b[2J\x1b[Hall is well\n"
	cause := standing.Cause{Word: standing.HeldFailed, Reason: odd, Endpoint: "hello-1"}
	v := answer.Verdict{Verdict: standing.Verdict{Name: "network west", Causes: []standing.Cause{cause}, Endpoints: []standing.Cause{cause}}}
	v.Gateways = []answer.Verdict{{Verdict: standing.Verdict{Name: "gw-1", Causes: []standing.Cause{cause}}}}
	x := explained{Processes: []answer.Explanation{{Process: "node proxy n", Network: "east", Now: time.Now(), Candidates: []answer.Verdict{v}}}}
	if text := x.text(); strings.Contains(text, "\x1b") || strings.Contains(text, "well\n") || strings.Count(text, "all is well") != 3 {
		t.Errorf("the explanation has the escapes and lines of a reason, or lacks one:\n%q", text)
	}
}

// A file that is not in force, a change that is held and an object that is left out: the
// mesh is not as its operator wrote it, whatever all pods do.
func TestStatusSaysWhatOfTheDiscoveryFileIsNotInForce(t *testing.T) {
	s := newSite(t)
	status := func() (int, string) {
		meshtest.Hello(s.at)
		code, out, _ := isthmus(t, "status", "--admin", s.east1+","+s.gateway)
		return code, out
	}
	await := func(what string, code int, twice ...string) {
		t.Helper()
		meshtest.Eventually(t, what, func() bool {
			is, out := status()
			return is == code && !slices.ContainsFunc(twice, func(x string) bool { return strings.Count(out, x) != 2 })
		})
	}
	await("all is well", exitOK)
	good, err := os.ReadFile(s.File())
	if err != nil {
		t.Fatal(err)
	}
	write := func(b []byte) {
		if err := os.WriteFile(s.File(), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(append([]byte("no_such_field: 1\n"), good...))
	await("a typo is told", exitFinding, "problem: discovery file "+s.File()+" is not in force as it is now: ", "no_such_field")
	write(good)
	await("the file is mended", exitOK)
	s.Config.Workloads[1].Services[0] = "no-such.default.svc.cluster.local"
	s.Write()
	await("a reference to nothing is told", exitFinding, "problem: discovery file "+s.File()+": line ", "no-such.default.svc.cluster.local")
	s.Config.Workloads = nil
	s.Write()
	await("a change that takes all away is told to be held", exitFinding, "a change is held: ", "/discovery/confirm?id=")
}

// Whose words are not believed, for want of the right key, is told; and the sickness of
// their pods is not known for that reason.
func TestStatusSaysWhichGatewaysAreNotBelieved(t *testing.T) {
	s := describe(t)
	s.Write()
	s.StartGateway("west", "gw-1").AwaitReady(t)
	key, err := networkkey.Generate(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct{ network, want string }{
		"none":  {"wset", "problem: no key for network west: nothing that its gateways say is believed: "},
		"wrong": {"west", `problem: not believed: instance certificate of gateway "gw-1" of network "west": none of the keys known of this network (fingerprint `},
	} {
		file := filepath.Join(s.Dir(), name+".yaml")
		if err := os.WriteFile(file, keyfile.FormatKnown(networkkey.Known{x.network: {key.Public()}}), 0o600); err != nil {
			t.Fatal(err)
		}
		east := s.StartGateway("east", "gw-1", func(c *gateway.Config) { c.Federation.Networks = file })
		meshtest.Eventually(t, name+" is told", func() bool {
			code, out, _ := isthmus(t, "status", "--admin", east.Admin.String())
			return code == exitFinding && strings.Contains(out, x.want)
		})
		east.Stop(t)
	}
	east := s.StartGateway("east", "gw-1", func(c *gateway.Config) {
		c.Federation.Networks = filepath.Join(c.Federation.Keys, keyfile.ListFile)
	})
	_, out, _ := isthmus(t, "status", "--admin", east.Admin.String())
	wantIn(t, out, "problem: no key for network west: ", "to a file of its own, and name it as federation.networks: ", keyfile.ListFile+" is for this network alone")
}

func TestStatusSaysWhyAProcessIsNotReady(t *testing.T) {
	s := answer.Status{Process: "node proxy n", Network: "east", Pending: []string{"certificate of spiffe://a/b: expired at 12:00"}}
	code, out, _ := isthmus(t, "status", "--admin", answering(t, &s).Listener.Addr().String())
	if code != exitFinding {
		t.Errorf("exit %d, want %d", code, exitFinding)
	}
	wantIn(t, out, "not ready: certificate of spiffe://a/b: expired at 12:00")
}

// A listener whose service has no pod left, or is not exported any more, has no share to
// say anything of: it must not look as if all were well for that.
func TestStatusShowsListenersThatLeadNowhere(t *testing.T) {
	s := newSite(t)
	status := func(want int, row string) func() bool {
		return func() bool {
			meshtest.Hello(s.at)
			code, out, _ := isthmus(t, "status", "--admin", s.east1)
			return code == want && (row == "" || slices.ContainsFunc(strings.Split(out, "\n"), func(l string) bool {
				return strings.HasPrefix(strings.Join(strings.Fields(l), " "), row)
			}))
		}
	}
	meshtest.Eventually(t, "all is well", status(exitOK, "west "+hello+" 80 2 2"))
	s.EditService("hello", func(x *discovery.Service) { x.Global = false })
	s.Write()
	meshtest.Eventually(t, "it is told not to be exported", status(exitFinding, "- "+hello+" 80 - - - not exported: "))
	s.EditService("hello", func(x *discovery.Service) { x.Global = true })
	s.Write()
	meshtest.Eventually(t, "it is exported again", status(exitOK, "west "+hello+" 80 2 2"))
	s.Config.Workloads = s.Config.Workloads[:1]
	s.Config.Confirm = ""
	s.Write()
	meshtest.Eventually(t, "it is told to have no pod", status(exitFinding, "- "+hello+" 80 - - - no endpoint: "))
}

// A row with many endpoints out names the first, and how many more there are.
func TestStatusNamesOnlyTheFirstOfManyThatAreOut(t *testing.T) {
	now := time.Now()
	row := standing.Row{Network: "west", Service: "hello", Port: 80, Ready: 30, Healthy: 10}
	for n := range 20 {
		row.Out = append(row.Out, standing.Out{Endpoint: fmt.Sprintf("west/default/hello-%d", n+1), Reason: "refused", Since: now, Witness: "its node west-1"})
	}
	text := statusText([]answer.Status{{Process: "gateway gw-1", Network: "west", Group: "a", Version: "v1.2.3", Now: now, Services: []answer.Row{{Row: row}}}})
	wantIn(t, text, "gateway gw-1 on network west, group a, version v1.2.3\n", "hello-8 (refused", ", +12 more\n")
	if strings.Contains(text, "hello-9 ") {
		t.Errorf("names all of 20 endpoints:\n%s", text)
	}
}
