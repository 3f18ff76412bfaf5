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
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/answer"
)

func TestEveryCheckIsInTheDocs(t *testing.T) {
	b, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range checkCodes {
		if line := fmt.Sprintf("| `%s` | %s | %s |", c.code, c.what, c.remedy); !strings.Contains(string(b), line) {
			t.Errorf("docs/operations.md lacks the line\n%s", line)
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
		"ISTH-307": func(s *answer.Status) {
			s.Gateways = []answer.Gateway{{Network: "west", Name: "gw-1", Error: "refused"}}
		},
	} {
		s, c := well(), &checkup{}
		spoil(s)
		c.processOf("x", s, now.Add(-time.Second), now)
		var bad []string
		for _, x := range c.all {
			if x.Level != checkWell {
				bad = append(bad, x.Code)
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
		c.gateway(t.Context(), kubectl{program: program, namespace: "n"}, "context east")
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
