package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Pods that are ready and of an older version are a finding too, and one that is given up is wrong.
func TestCheckOfRollouts(t *testing.T) {
	const gateway = `{"metadata":{"generation":3},"spec":{"replicas":2},"status":{"observedGeneration":3,"readyReplicas":2,"updatedReplicas":2}}`
	program := filepath.Join(t.TempDir(), "kubectl")
	for name, x := range map[string]struct {
		gateway, nodes string
		want, not      []string
	}{
		"done":          {gateway, "", []string{"✓ ISTH-104", "✓ ISTH-112"}, []string{"!", "✗"}},
		"not installed": {"", "", []string{"✗ ISTH-104"}, []string{"ISTH-112"}},
		"under way":     {strings.Replace(gateway, `"updatedReplicas":2`, `"updatedReplicas":1`, 1), "", []string{"✓ ISTH-104", "! ISTH-112", "deployment isthmus-gateway: 1 of 2 pods are of the present version"}, []string{"✗"}},
		"not begun":     {strings.Replace(gateway, `"observedGeneration":3`, `"observedGeneration":2`, 1), "", []string{"! ISTH-112", "not looked at"}, []string{"✗"}},
		"given up": {strings.Replace(gateway, `"updatedReplicas":2`, `"updatedReplicas":1,"conditions":[{"type":"Available","status":"True"},{"type":"Progressing","status":"False","reason":"ProgressDeadlineExceeded","message":"has timed out progressing"}]`, 1), "",
			[]string{"✓ ISTH-104", "✗ ISTH-112", "is stuck (ProgressDeadlineExceeded): has timed out progressing", "kubectl rollout status"}, nil},
		"node proxies": {gateway, `{"metadata":{"generation":1},"status":{"observedGeneration":1,"desiredNumberScheduled":3,"numberReady":3,"updatedNumberScheduled":1}}`,
			[]string{"✓ ISTH-106", "! ISTH-112", "daemonset isthmus-nodeproxy: 1 of 3 pods"}, []string{"✗"}},
	} {
		script := "#!/bin/sh\ncase $3 in\nisthmus-gateway) echo '" + x.gateway + "';;\nisthmus-nodeproxy) echo '" + x.nodes + "';;\nesac\n"
		if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		c := &checkup{}
		if err := c.workloads(t.Context(), &checkedCluster{where: "context east"}, &place{k: kubectl{program: program}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var b strings.Builder
		if err := showChecks(&b, c, "text"); err != nil {
			t.Fatal(err)
		}
		text := b.String()[:strings.LastIndex(strings.TrimSpace(b.String()), "\n")] // without the sum
		wantIn(t, text, x.want...)
		for _, s := range x.not {
			if strings.Contains(text, s) {
				t.Errorf("%s: it says %q:\n%s", name, s, text)
			}
		}
	}
}
