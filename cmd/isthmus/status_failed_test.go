package main

import (
	"os"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// Discovery in the east lists another identity for the pods of west than they have: each
// connection fails, it is no pod's fault, and all pods are said to be healthy.
func TestStatusSaysThatConnectionsFailThoughNobodyIsIll(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east", "west")
	m.Service("hello", 80, 8080)
	m.Gateway("east", "gw-1")
	m.Gateway("west", "gw-1")
	shop := m.Pod("east", "east-1", "shop-1")
	m.Pod("west", "west-1", "hello-1", "hello").App(8080)
	east, file := eastsOwnFile(t, m)
	misled := strings.ReplaceAll(string(file), "serviceAccount: hello", "serviceAccount: goodbye")
	if misled == string(file) {
		t.Fatalf("no service account hello in\n%s", file)
	}
	if err := os.WriteFile(east, []byte(misled), 0o600); err != nil {
		t.Fatal(err)
	}
	m.Start()
	east1 := m.Process("node proxy east-1")
	out := ""
	meshtest.Eventually(t, "status says that connections fail", func() bool {
		if c, err := shop.Connect(hello + ":80"); err == nil {
			c.Close()
			t.Fatal("a pod of another identity is talked to")
		}
		var code int
		code, out, _ = isthmus(t, "status", "--admin", east1.Admin.String())
		return code == exitFinding && strings.Contains(out, "attempts failed") && strings.Contains(out, "identity")
	})
	code, checked, errs := isthmus(t, "check", "--admin", east1.Admin.String())
	if code != exitFinding || !strings.Contains(checked, "✗ ISTH-310") || !strings.Contains(checked, hello+":80 on network west: the last ") || !strings.Contains(checked, "identity") {
		t.Errorf("check ends with %d, want %d and ISTH-310 with what status says:\n%s%s", code, exitFinding, checked, errs)
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "west ") && !strings.Contains(line, " 1  ") {
			t.Errorf("the row says %q; want one pod that is well", line)
		}
	}
}
