package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/internal/answer"
)

// Each code has its line in the docs, in the table of the phase in which it is met.
func TestEveryCheckIsInTheDocs(t *testing.T) {
	b, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range checkCodes {
		_, table, there := strings.Cut(string(b), "\n#### "+c.phase+"\n")
		table, _, _ = strings.Cut(table, "\n#")
		if line := fmt.Sprintf("| `%s` | %s | %s |", c.code, c.what, (&place{}).fill(c.remedy)); !there || !strings.Contains(table, line) {
			t.Errorf("docs/operations.md lacks under %q the line\n%s", c.phase, line)
		}
		if seen[c.code] {
			t.Errorf("%s is two things", c.code)
		}
		seen[c.code] = true
	}
	if n := strings.Count(string(b), "| `ISTH-"); n != len(checkCodes) {
		t.Errorf("docs/operations.md has %d codes, want %d", n, len(checkCodes))
	}
}

// Two networks of a service, in every state each: a service without a healthy endpoint is named,
// any other is not.
func TestCheckNamesServicesWithoutEndpoints(t *testing.T) {
	var rows []answer.Row
	for ready := range uint32(3) {
		for healthy := range ready + 1 {
			rows = append(rows, answer.Row{Row: standing.Row{Ready: ready, Healthy: healthy}})
		}
		rows = append(rows, answer.Row{Row: standing.Row{Ready: ready}, Unknown: true}, answer.Row{Row: standing.Row{Ready: ready}, Unreached: "refused"}, answer.Row{Row: standing.Row{Ready: ready}, Draining: true})
	}
	dead := func(r answer.Row) bool {
		return r.Ready > 0 && r.Healthy == 0 && !r.Unknown && r.Unreached == "" && !r.Draining
	}
	empty := func(r answer.Row) bool {
		return r.Ready == 0 && !r.Unknown && r.Unreached == "" && !r.Draining
	}
	for _, a := range rows {
		for _, b := range rows {
			a.Network, a.Service, a.Port, b.Network, b.Service, b.Port = "east", "hello", 80, "west", "hello", 80
			got := withoutEndpoints(&answer.Status{Services: []answer.Row{a, b}})
			if want := dead(a) || dead(b) || empty(a) && empty(b); want != (len(got) > 0) {
				t.Errorf("%+v\n%+v\n%q; want a line: %t", a, b, got, want)
			}
		}
	}
}

func TestCheckOfAProcess(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	well := func() *answer.Status {
		return &answer.Status{Process: "gateway gw-1", Network: "east", Now: now, Known: []answer.Known{{Network: "west"}}, Heard: []answer.Heard{{Network: "west", Phase: "live"}}}
	}
	for code, spoil := range map[string]func(*answer.Status){
		"":         func(*answer.Status) {},
		"ISTH-302": func(s *answer.Status) { s.Pending = []string{"federation"} },
		"ISTH-303": func(s *answer.Status) { s.Now = now.Add(time.Minute) },
		"ISTH-304": func(s *answer.Status) { s.Problems = []string{"services[0]: odd"} },
		"ISTH-305": func(s *answer.Status) { s.Heard[0].Phase = "silent" },
		"ISTH-306": func(s *answer.Status) { s.Process, s.Detached = "node proxy east-1", true },
		"ISTH-309": func(s *answer.Status) { s.Process, s.Unguarded = "node proxy east-1", []string{"pod demo/web"} },
		"ISTH-311": func(s *answer.Status) { s.Warnings = []string{"AuthorizationPolicy demo/web"} },
		"ISTH-312": func(s *answer.Status) { s.Unrouted = []string{"service hello"} },
		"ISTH-313": func(s *answer.Status) {
			s.Services = []answer.Row{{Row: standing.Row{Network: "west", Service: "hello", Port: 80, Ready: 2}}}
		},
		"ISTH-310": func(s *answer.Status) {
			s.Process, s.Services = "node proxy east-1", []answer.Row{{Why: "nothing like it"}}
		},
		"ISTH-307": func(s *answer.Status) {
			s.Gateways = []answer.Gateway{{Network: "west", Name: "gw-1", Reason: "not heard by the gateways of network east"}}
		},
	} {
		s, c := well(), &checkup{}
		spoil(s)
		c.processOf("x", s, now.Add(-time.Second), now)
		var bad []string
		for _, x := range c.all {
			if x.Level != checkWell {
				bad = append(bad, x.Code)
				if x.Level != checkWarning && (x.Code == "ISTH-311" || x.Code == "ISTH-312" || x.Code == "ISTH-313") {
					t.Errorf("%s is %s, want a warning", x.Code, x.Level)
				}
				if x.Found == "" || x.Remedy == "" {
					t.Errorf("%s says neither what is wrong nor what to do: %+v", x.Code, x)
				}
			}
		}
		if want := slices.DeleteFunc([]string{code}, func(s string) bool { return s == "" }); !slices.Equal(bad, want) {
			t.Errorf("%q is found, want %q", bad, want)
		}
	}
}

func TestCheckOfTunnels(t *testing.T) {
	well := answer.Tried{Network: "west", Address: "203.0.113.1:15008", Gateway: "west/gw-1", RTTMS: 1.25, Identity: "spiffe://west.local/ns/isthmus-system/sa/gateway"}
	bad := answer.Tried{Network: "west", Address: "203.0.113.2:15008", Error: "connection refused"}
	for name, x := range map[string]struct {
		tried []answer.Tried
		level string
		says  []string
	}{
		"reached":            {[]answer.Tried{well}, checkWell, []string{"west/gw-1 at 203.0.113.1:15008 in 1.2 ms", "spiffe://west.local"}},
		"not at one address": {[]answer.Tried{well, bad}, checkWarning, []string{"at 203.0.113.2:15008: connection refused", "west/gw-1"}},
		"not at all":         {[]answer.Tried{bad}, checkBad, []string{"connection refused", "firewall"}},
		"not dialed":         {[]answer.Tried{{Network: "west", Address: "203.0.113.2:15008", Error: "not dialed", Undialled: true}}, checkWarning, []string{"not dialed"}},
		"and one failed":     {[]answer.Tried{bad, {Network: "west", Address: "203.0.113.3:15008", Error: "not dialed", Undialled: true}}, checkBad, []string{"not dialed", "refused"}},
		"no address":         {[]answer.Tried{{Network: "west", Error: "no address of it is known"}}, checkWarning, []string{"no address"}},
	} {
		c := &checkup{}
		c.reached("gateway gw-1 on network east", &answer.Reach{Tried: x.tried})
		var b strings.Builder
		if err := showChecks(&b, c, "text"); err != nil {
			t.Fatal(err)
		}
		if len(c.all) != 1 || c.all[0].Level != x.level {
			t.Errorf("%s: %+v; want %s", name, c.all, x.level)
		}
		wantIn(t, b.String(), append(x.says, "ISTH-308")...)
	}
}

// kubectl of the test forwards to a gateway that answers, or says why it does not.
func TestCheckOfAClusterAsksAGateway(t *testing.T) {
	gw := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/status":
			json.NewEncoder(w).Encode(answer.Status{Process: "gateway gw-1", Network: "east", Now: time.Now()})
		case "/reach":
			json.NewEncoder(w).Encode(answer.Reach{Network: "east", Tried: []answer.Tried{{Network: "west", Address: "203.0.113.1:15008", RTTMS: 3}}})
		}
	}))
	defer gw.Close()
	program := filepath.Join(t.TempDir(), "kubectl")
	for name, x := range map[string]struct{ forward, want string }{
		"forwarded": {"echo 'Forwarding from " + gw.Listener.Addr().String() + " -> 15000'; exec sleep 600", "✓ ISTH-109"},
		"forbidden": {"echo 'error: pods \"x\" is forbidden' >&2; exit 1", "forbidden"},
		"nonsense":  {"echo nonsense; exec sleep 600", "! ISTH-109"},
	} {
		script := "#!/bin/sh\ncase $1 in\nget) echo '{\"status\":{\"readyReplicas\":1}}';;\nport-forward) " + x.forward + ";;\nesac\n"
		if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		c := &checkup{}
		c.processes(t.Context(), kubectl{program: program, namespace: "n"}, "context east")
		var b strings.Builder
		if err := showChecks(&b, c, "text"); err != nil {
			t.Fatal(err)
		}
		wantIn(t, b.String(), x.want)
		if got := strings.Contains(b.String(), "✓ ISTH-308") && strings.Contains(b.String(), "gateway gw-1 on network east (context east)"); got != (name == "forwarded") {
			t.Errorf("%s:\n%s", name, &b)
		}
		if c.count(checkBad) > 0 {
			t.Errorf("%s: it is an error:\n%s", name, &b)
		}
	}
}

func TestCheckThatCannotAskExitsThree(t *testing.T) {
	for line, want := range map[string]int{
		"check": exitUsage, "check --admin nonsense": exitUsage, "check --contexts x -o yaml": exitUsage,
		"check --admin 127.0.0.1:1": exitStart,
	} {
		if code, _, errs := isthmus(t, strings.Fields(line)...); code != want || errs == "" {
			t.Errorf("%s: %d, %s; want %d", line, code, errs, want)
		}
	}
}

// Each place is one group, with its checks by their codes; objects of one check are sorted, and
// further lines of one are indented, none of which begins where a check does.
func TestChecksAreShownByPlaceAndCode(t *testing.T) {
	c := &checkup{}
	c.add(checkAddress, "context east", checkWarning, "")
	c.add(checkProblems, "gateway gw-1", checkBad, items([]string{"b: odd", "a: has mistakes:\nline 1\n✓ ISTH-999 well", "b: odd"}))
	c.add(checkAsked, "gateway gw-1", checkBad, "")
	c.add(checkForward, "context east", checkWarning, "")
	c.add(checkCard, "context east", checkBad, "")
	c.add(checkReachable, "gateway gw-1", checkBad, "")
	c.sort()
	var b strings.Builder
	if err := showChecks(&b, c, "text"); err != nil {
		t.Fatal(err)
	}
	want := `context east
  ✓ ISTH-101 ` + checkCard.what + `
  ✓ ISTH-107 ` + checkAddress.what + `
  ✓ ISTH-109 ` + checkForward.what + `
gateway gw-1
  ✓ ISTH-301 ` + checkAsked.what + `
  ✗ ISTH-304 ` + checkProblems.what + `
      a: has mistakes:
        line 1
        ✓ ISTH-999 well
      b: odd
      → ` + (&place{}).fill(checkProblems.remedy) + `
  ✓ ISTH-307 ` + checkReachable.what + `
5 ✓, 0 !, 1 ✗
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &b, want)
	}
}

func TestCheckOfGatewaysThatAreOutSaysWhyOnce(t *testing.T) {
	c := &checkup{}
	c.processOf("x", &answer.Status{Process: "node proxy n", Gateways: []answer.Gateway{{Network: "west", Name: "gw-2", Reason: "no_connect", Error: "dial tcp: refused"}, {Network: "west", Name: "gw-1", Reason: "draining"}}}, time.Now(), time.Now())
	want := "gateway gw-1 of network west is out (draining)\ngateway gw-2 of network west is out (no_connect): dial tcp: refused"
	if got := c.all[len(c.all)-1].Found; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A gateway of the own network that has no health stream is an object of ISTH-306 alone.
func TestCheckOfOwnGatewayWithoutStream(t *testing.T) {
	for _, detached := range []bool{false, true} {
		s := &answer.Status{Process: "node proxy n", Network: "east", Now: time.Now(), Detached: detached, Gateways: []answer.Gateway{{Network: "east", Name: "gw-1", Reason: "no health stream", Error: "refused"}}}
		c := &checkup{}
		c.processOf("x", s, time.Now(), time.Now())
		for _, x := range c.all {
			want := checkWell
			if x.Code == checkAttached.code {
				want = map[bool]string{false: checkWarning, true: checkBad}[detached]
				wantIn(t, x.Found, "gateway gw-1: refused")
			}
			if x.Level != want {
				t.Errorf("detached %t: %s is %s, want %s: %s", detached, x.Code, x.Level, want, x.Found)
			}
		}
	}
}

func TestCheckRemedyHasAdminAddress(t *testing.T) {
	gw := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(answer.Status{Process: "node proxy n", Network: "east", Now: time.Now(), Problems: []string{"odd"}})
	}))
	defer gw.Close()
	_, out, _ := isthmus(t, "check", "--admin", gw.Listener.Addr().String())
	wantIn(t, out, "→ isthmus status --admin "+gw.Listener.Addr().String()+" # shows")
}

// The remedy of a problem is what it asks for, and no other text behind a colon.
func TestProblemRemedies(t *testing.T) {
	for problem, want := range map[string]string{
		`not proven: health hello:80 of network "west" (uncertified): no valid certificate for instance daa7`:                                                            "",
		`discovery file mesh.yaml: line 3: gateways[0].name: name is empty: give one`:                                                                                    "give one",
		`discovery file mesh.yaml: line 3: gateways[0].name: is empty: give the gateway's name`:                                                                          "give the gateway's name",
		`network "west" is not linked: run isthmus link --apply: until then its exports are ignored`:                                                                     "run isthmus link --apply: until then its exports are ignored",
		`services[0]: name the port of the service`:                                                                                                                      "name the port of the service",
		"network west is not linked; its exports are ignored: did you mean \"wset\" in links.yaml?":                                                                      "did you mean \"wset\" in links.yaml?",
		"certificate of gateway gw-1: none of the keys has signed it: compare `isthmus network show` there; if they agree, a forgotten key has certified it: restart it": "compare `isthmus network show` there; if they agree, a forgotten key has certified it: restart it",
		`metadata.name: name of another object`:                                                                                                                          "",
		"discovery file mesh.yaml is not in force:\nmesh.yaml:3: network: \"esat\" is no network: correct the name, or add the network":                                  "correct the name, or add the network",
		`east/demo/shop is not captured: open /proc/1/ns/net: permission denied`:                                                                                         "",
	} {
		got, general, _ := strings.Cut(problemRemedy([]string{problem, problem}), "\n")
		if want == "" {
			got, general = "", got
		}
		if got != want || general != checkProblems.remedy {
			t.Errorf("%s\ngot  %q, %q\nwant %q", problem, got, general, want)
		}
	}
}

// check --wait says what it waits for, once as long as that is the same.
func TestCheckSaysWhatItWaitsFor(t *testing.T) {
	var asked atomic.Int32
	gw := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := answer.Status{Process: "node proxy n", Network: "east", Now: time.Now()}
		switch n := asked.Add(1); {
		case n <= 2:
			s.Pending, s.Problems = []string{fmt.Sprint("look ", n)}, []string{"odd"}
		case n == 3:
			s.Problems = []string{"odd"}
		}
		json.NewEncoder(w).Encode(s)
	}))
	defer gw.Close()
	code, out, errs := isthmus(t, "check", "--admin", gw.Listener.Addr().String(), "--wait", "1m")
	where := "(node proxy n on network east (" + gw.Listener.Addr().String() + "))"
	want := "isthmus: waiting for ISTH-302 " + where + ", ISTH-304 " + where + "\nisthmus: waiting for ISTH-304 " + where + "\n"
	if code != exitOK || errs != want || strings.Contains(out, "waiting") {
		t.Errorf("exits with %d and says\n%s\nwant\n%s", code, errs, want)
	}
}

// An API server that is away is one line, as often as kubectl says it.
func TestCheckOfAClusterThatIsAwayIsOneLine(t *testing.T) {
	program := filepath.Join(t.TempDir(), "kubectl")
	const away = "The connection to the server 192.0.2.1:6443 was refused - did you specify the right host or port?"
	attempt := `E1123 08:50:28.123456   12345 memcache.go:265] "Unhandled Error" err="couldn'\''t get current server API group list"`
	script := "#!/bin/sh\nfor i in 1 2 3 4 5; do echo '" + attempt + "' >&2; done\necho '" + away + "' >&2\nexit 1\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	code, _, errs := isthmus(t, "check", "--contexts", "east", "--kubectl", program)
	if code != exitStart || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, away) || !strings.Contains(errs, "--context east") {
		t.Errorf("exits with %d and says\n%s", code, errs)
	}
	if got := complaint("E1123 08:50:28.1 1 a.go:1] x\nE1123 08:50:29.1 1 a.go:1] x\n"); got != "E1123 08:50:28.1 1 a.go:1] x" {
		t.Errorf("of a log alone it leaves %q", got)
	}
}

// What ISTH-304 and ISTH-310 say has a line with what to do: they send whoever reads it there.
func TestOperationsHaveWhatStatusSays(t *testing.T) {
	b, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(b), "\n## What status and explain say, and what to do\n")
	table, _, _ = strings.Cut(table, "\n### ")
	for _, says := range []string{"capture.namespaces[N].workload: discovery has no workload", "capture.namespaces[N].resolvConf: … has no nameserver", "capture.namespaces[N].resolvConf: open …", "no interface of its network namespace has its address",
		"not exported: …", "no route …", "unknown port …", "discovery file X: line N", "discovery file X is not in force", "would deny connections in plain text", "is STRICT, and plain text goes past the node proxy", "`warning: …`"} {
		found := false
		for line := range strings.Lines(table) {
			cells := strings.Split(line, "|")
			found = found || len(cells) == 5 && strings.Contains(cells[1], says) && strings.TrimSpace(cells[3]) != ""
		}
		if !found {
			t.Errorf("docs/operations.md has no row of %q with what to do", says)
		}
	}
}
