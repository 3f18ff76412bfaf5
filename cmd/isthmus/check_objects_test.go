package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What the controller has written at objects is shown as long as it stands; a cluster without
// the Multi-Cluster Services API has no exports to check.
func TestCheckOfObjects(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	event := func(kind, namespace, name, level string, age time.Duration) string {
		return fmt.Sprintf(`{"involvedObject":{"kind":%q,"namespace":%q,"name":%q},"type":%q,"reason":"Conflict","message":"remove one of the two","lastTimestamp":%q}`, kind, namespace, name, level, now.Add(-age).Format(time.RFC3339))
	}
	const exports = `{"metadata":{"namespace":"shop","name":"cart"},"status":{"conditions":[{"type":"Valid","status":"True"},{"type":"Conflict","status":"True","reason":"PortConflict","message":"ports differ"}]}}`
	program := filepath.Join(t.TempDir(), "kubectl")
	for name, x := range map[string]struct {
		events, exports string
		want, not       []string
	}{
		"nothing":    {"", "", []string{"✓ ISTH-110", "✓ ISTH-111"}, []string{"!"}},
		"events":     {event("Service", "shop", "odd", "Warning", time.Minute) + "," + event("Namespace", "", "shop", "Warning", time.Hour), "", []string{"! ISTH-110", "Service shop/odd (Conflict, 1m0s ago): remove one of the two"}, []string{"Namespace"}},
		"conditions": {"", exports, []string{"! ISTH-111", "ServiceExport shop/cart: Conflict is True (PortConflict): ports differ"}, []string{"Valid is"}},
		"no kinds":   {"", "none", []string{"✓ ISTH-110", "! ISTH-115"}, []string{"ISTH-111"}},
	} {
		answer := "echo '{\"items\":[" + x.exports + "]}'"
		if x.exports == "none" {
			answer = "echo \"error: the server doesn't have a resource type \\\"serviceexports\\\"\" >&2; exit 1"
		}
		script := "#!/bin/sh\ncase $2 in\nevents) echo '{\"items\":[" + x.events + "]}';;\ndeployment) echo '{}';;\n*) " + answer + ";;\nesac\n"
		if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		c := &checkup{}
		if err := c.objects(t.Context(), &place{k: kubectl{program: program}}, "context east", now); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var b strings.Builder
		if err := showChecks(&b, c, "text"); err != nil {
			t.Fatal(err)
		}
		text, _, _ := strings.Cut(b.String(), "\n0 ✓") // without the sum
		text, _, _ = strings.Cut(text, " ✓, ")
		wantIn(t, text, x.want...)
		for _, s := range x.not {
			if strings.Contains(text, s) {
				t.Errorf("%s: it says %q:\n%s", name, s, text)
			}
		}
	}
}
