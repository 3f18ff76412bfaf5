package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/drill/demoapp"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// site is a client on east, and hello on two pods of west.
type site struct {
	*meshtest.Mesh
	at             netip.AddrPort
	apps           []*demoapp.App
	east1, gateway string // admin addresses
}

const hello = "hello.default.svc.cluster.local"

func newSite(t *testing.T) *site {
	s := describe(t)
	s.Start()
	s.east1 = s.Process("node proxy east-1").Admin.String()
	s.gateway = s.Process("gateway west/gw-1").Admin.String()
	return s
}

// describe is a site of which nothing runs but the applications.
func describe(t *testing.T) *site {
	s := &site{Mesh: meshtest.New(t)}
	s.Networks("east", "west")
	s.Service("hello", 80, 8080)
	s.Gateway("east", "gw-1")
	s.Gateway("west", "gw-1")
	s.at = s.Pod("east", "east-1", "shop-1").Outbound(hello + ":80")
	for i, name := range []string{"hello-1", "hello-2"} {
		s.apps = append(s.apps, s.Pod("west", []string{"west-1", "west-2"}[i], name, "hello").App(8080))
	}
	return s
}

func TestExplainAndStatusSayWhatIsOutAndWhoSaysSo(t *testing.T) {
	s := newSite(t)
	if _, err := meshtest.Hello(s.at); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := isthmus(t, "explain", "east/default/shop-1", hello+":80", "--admin", s.east1+","+s.gateway); code != exitOK {
		t.Errorf("exit %d while all are well: %s%s", code, out, errs)
	}
	meshtest.Eventually(t, "it says that a session with each pod is kept", func() bool {
		_, out, _ := isthmus(t, "explain", "east/default/shop-1", hello+":80", "--admin", s.east1)
		return strings.Contains(out, "; 2 of 2 wanted sessions with its pods are kept")
	})
	if err := s.apps[0].Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	var out, errs string
	code := 0
	meshtest.Eventually(t, "both processes know", func() bool {
		meshtest.Hello(s.at)
		code, out, errs = isthmus(t, "explain", "east/default/shop-1", hello+":80", "--admin", s.east1+","+s.gateway)
		return strings.Count(out, "west/default/hello-1:8080 out for ") == 2 && strings.Count(out, ": refused, seen by its node west-1") == 2
	})
	wantIn(t, out, "node proxy east-1 on network east", "network west in, 100 % of new connections", "by gateway gw-1 in",
		"west/default/hello-2:8080 in, 100 % of new connections")
	if code != exitOK || errs != "" || strings.Contains(out, "difference") {
		t.Errorf("exit %d, %q: one pod is out, both agree, and connections go on:\n%s", code, errs, out)
	}
	code, out, _ = isthmus(t, "status", "--admin", s.gateway+","+s.east1)
	wantIn(t, out, "READY", "west/default/hello-1 (refused, ", "by west-1)", "by its node west-1)", "node proxy east-1 on network east")
	if code != exitFinding {
		t.Errorf("exit %d with a pod out; want %d", code, exitFinding)
	}
	code, out, _ = isthmus(t, "explain", "east/default/shop-1", hello+":80", "--admin", s.gateway, "-o", "json")
	var x explained
	if err := json.Unmarshal([]byte(out), &x); err != nil || code != exitOK || len(x.Processes) != 1 || len(x.Processes[0].Candidates) != 2 {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
	if err := s.apps[1].Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	meshtest.Eventually(t, "nobody is healthy", func() bool {
		meshtest.Hello(s.at)
		code, out, _ = isthmus(t, "explain", "east/default/shop-1", hello+":80", "--admin", s.gateway)
		return code == exitFinding && strings.Contains(out, "nobody is known to be healthy")
	})
}

func TestExplainRefusesWhatItCannotAsk(t *testing.T) {
	s := newSite(t)
	for _, x := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"explain", "east/default/shop-2", hello + ":80", "--admin", s.east1}, exitUsage, []string{"source", `"east/default/shop-2"`, "shop-1"}},
		{[]string{"explain", "east/default/shop-1", hello, "--admin", s.east1}, exitUsage, []string{"destination", hello, "host:port"}},
		{[]string{"explain", "east/default/shop-1", hello, "--admin", s.gateway}, exitUsage, []string{"destination", hello, "host:port"}},
		{[]string{"explain", "east/default/shop-1", "nobody:80", "--admin", s.east1}, exitFinding, []string{"refused", "nobody"}},
		{[]string{"explain", "east/default/shop-1", "helo.default.svc.cluster.local:80", "--admin", s.east1}, exitFinding, []string{`did you mean "` + hello + `"?`}},
		{[]string{"explain", "east/default/shop-1", "helo.default.svc.cluster.local:80", "--admin", s.gateway}, exitFinding, []string{`did you mean "` + hello + `"?`}},
		{[]string{"explain", "one"}, exitUsage, []string{"2 arg"}},
		{[]string{"status", "--admin", "here"}, exitUsage, []string{"--admin", `"here"`, "address:port"}},
		{[]string{"status", "-o", "xml"}, exitUsage, []string{"--output", "xml"}},
		{[]string{"status", "--admin", s.Addr().String() + ":1"}, exitStart, []string{"connection refused", "nothing listens there", "port-forward", "--admin"}},
	} {
		code, out, errs := isthmus(t, x.args...)
		if code != x.code {
			t.Errorf("%v: exit %d, want %d", x.args, code, x.code)
		}
		wantIn(t, out+errs, x.want...)
	}
}

func TestDifferencesNameThePodAndWhoBelievesWhat(t *testing.T) {
	var client, gateway = `{"process":"node proxy east-1","network":"east","candidates":[{"kind":"share","name":"west","in":true}]}`,
		`{"process":"gateway gw-1","network":"west","candidates":[{"kind":"pod","name":"hello-1","causes":[{"word":"reported"}]},{"kind":"pod","name":"hello-2","in":true}]}`
	var x explained
	if err := json.Unmarshal([]byte(`{"processes":[`+client+`,`+gateway+`]}`), &x); err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]string{differences(x.Processes[0], x.Processes[1]), differences(x.Processes[1], x.Processes[0])} {
		if len(list) != 1 {
			t.Fatalf("differences %q; want hello-1 alone", list)
		}
		wantIn(t, list[0], "hello-1", "in by node proxy east-1", "out by gateway gw-1")
	}
}

// A gateway that has no pod of the service is told apart from one that refuses, and is no
// finding beside others.
func TestExplainAtAGatewayWithoutPartInTheService(t *testing.T) {
	s := newSite(t)
	if _, err := meshtest.Hello(s.at); err != nil {
		t.Fatal(err)
	}
	east := s.Process("gateway east/gw-1").Admin.String()
	code, out, _ := isthmus(t, "explain", "east/default/shop-1", hello+":80", "--admin", s.east1+","+east)
	wantIn(t, out, "gateway gw-1 on network east:\n  does not carry this service")
	if code != exitOK || strings.Contains(out, "refused") {
		t.Errorf("exit %d: %s", code, out)
	}
	if code, _, _ = isthmus(t, "explain", "east/default/shop-1", hello+":80", "--admin", east); code != exitFinding {
		t.Errorf("exit %d of somebody who carries nothing alone; want %d", code, exitFinding)
	}
}

// What fails on identity is nobody's health: it is shown all the same.
func TestExplainNamesThePolicyThatDecides(t *testing.T) {
	e := answer.Explanation{Process: "node proxy west-1", Network: "west", AtDestination: true, Permissions: []answer.Permission{
		{UID: "west/demo/hello-1", Port: 8080, Allowed: true, From: "10.0.0.7", Why: "allowed by AuthorizationPolicy demo/web, rules[1]", DryRun: []string{"denied by AuthorizationPolicy demo/new, rules[0]"}},
		{UID: "1f", Pod: "demo/hello-2", Port: 8080, Why: "denied by AuthorizationPolicy demo/no-batch, rules[0]"},
	}}
	x := explained{Processes: []answer.Explanation{e}}
	want := `node proxy west-1 on network west:
  west/demo/hello-1:8080 by its policies: allowed by AuthorizationPolicy demo/web, rules[1], for connections from 10.0.0.7; in dry run: denied by AuthorizationPolicy demo/new, rules[0]
  demo/hello-2:8080 by its policies: denied by AuthorizationPolicy demo/no-batch, rules[0]
`
	if got := x.text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if x.finding() == nil {
		t.Error("a policy that denies is no finding")
	}
	if x.Processes[0].Permissions = e.Permissions[:1]; x.finding() != nil {
		t.Error("policies that allow are a finding")
	}
}

func TestExplainShowsAttemptsThatAreHeldAgainstNobody(t *testing.T) {
	s := describe(t)
	s.Write()
	b, err := os.ReadFile(s.File())
	if err != nil {
		t.Fatal(err)
	}
	misled := s.Dir() + "/misled.yaml"
	if err := os.WriteFile(misled, bytes.ReplaceAll(b, []byte("serviceAccount: hello"), []byte("serviceAccount: other")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"west-1", "west-2"} {
		s.StartNode("west", n, func(c *nodeproxy.Config) { c.Discovery.File = misled })
	}
	s.Start()
	east1 := s.Process("node proxy east-1").Admin.String()
	for range 3 {
		if _, err := meshtest.Hello(s.at); err == nil {
			t.Fatal("a pod of another identity was believed")
		}
	}
	code, out, _ := isthmus(t, "explain", "east/default/shop-1", hello+":80", "--admin", east1)
	wantIn(t, out, "network west in, 100 %", "attempts failed, ", "identity (", "/sa/other")
	if strings.Count(out, "identity (") != 1 {
		t.Errorf("the same error stands in two lines:\n%s", out)
	}
	if code != exitFinding || strings.Count(out, "attempts failed") != 2 {
		t.Errorf("exit %d while every connection fails; want %d, and both the share and its gateway to say so:\n%s", code, exitFinding, out)
	}
}

// A network that never spoke has said nothing, and what is used all the same is not out.
func TestExplainPutsNoWordsIntoTheMouthOfASilentNetwork(t *testing.T) {
	s := describe(t)
	s.Write()
	s.StartGateway("east", "gw-1")
	east1 := s.StartNode("east", "east-1")
	east1.AwaitReady(t)
	_, out, _ := isthmus(t, "explain", "east/default/shop-1", hello+":80", "--admin", east1.Admin.String())
	wantIn(t, out, "network west in, 100 %", "nothing is known of west: used all the same")
	meshtest.Eventually(t, "the gateway is out", func() bool {
		meshtest.Hello(s.at)
		code, text, _ := isthmus(t, "explain", "east/default/shop-1", hello+":80", "--admin", east1.Admin.String())
		out = text
		return code == exitFinding && strings.Contains(out, "none of its gateways can be reached")
	})
	wantIn(t, out, "those below are used although out", "network west used although out, 100 % of new connections", "by gateway gw-1 used although out, 100 % of new connections: connect",
		"nothing is known of west", "attempts failed")
	if strings.Contains(out, "says itself") || strings.Contains(strings.ReplaceAll(out, "although out", ""), " out") {
		t.Errorf("words that nobody said:\n%s", out)
	}
}

// A service that no pod of the node has used yet is followed by nobody: that no pod of it
// is out, its node proxy does not claim.
func TestExplainOfAServiceThatIsNotAskedOfYet(t *testing.T) {
	s := newSite(t)
	other := s.Service("other", 80, 8080)
	for i := range 2 {
		s.Pod("west", "west-1", "other-"+string(rune('1'+i)), "other").App(8080)
	}
	s.Write()
	const unasked = "nothing is asked of this service yet: the first connection will ask"
	meshtest.Eventually(t, "it is said that nothing is asked", func() bool {
		_, out, _ := isthmus(t, "explain", "east/default/shop-1", other+":80", "--admin", s.east1)
		return strings.Contains(out, unasked)
	})
	if _, out, _ := isthmus(t, "explain", "east/default/shop-1", hello+":80", "--admin", s.east1); strings.Contains(out, unasked) {
		t.Errorf("a listener leads to it:\n%s", out)
	}
	pod := answer.Verdict{Verdict: standing.Verdict{Kind: "pod", Name: "other-1", Causes: []standing.Cause{{Word: standing.HeldReported}}}}
	share := answer.Verdict{Verdict: standing.Verdict{Kind: "share", Name: "west", In: true}}
	client, gateway := answer.Explanation{Network: "east", Candidates: []answer.Verdict{share}}, answer.Explanation{Network: "west", Candidates: []answer.Verdict{pod}}
	if len(differences(client, gateway)) != 1 {
		t.Error("they differ")
	}
	if client.Unasked = true; len(differences(client, gateway)) != 0 {
		t.Error("who has not asked believes nothing")
	}
}

func TestExplainOfWhatIsNotCaptured(t *testing.T) {
	x := explained{Processes: []answer.Explanation{{Process: "node proxy n", Network: "east", NotCaptured: "192.0.2.7 is none of the mesh's"}}}
	wantIn(t, x.text(), "\n  not captured, and goes as without a mesh: 192.0.2.7 is none of the mesh's\n")
	if err := x.finding(); err != nil {
		t.Errorf("it is a finding: %v", err)
	}
}
