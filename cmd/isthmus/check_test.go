package main

import (
	"fmt"
	"os"
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
