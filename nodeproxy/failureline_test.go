package nodeproxy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// Whoever reads one warning of a failure knows who wanted what, what was tried, and
// what really happened at the far end.
func TestAFailureIsOneUsefulLine(t *testing.T) {
	p := newPair(t, 1)
	p.EachNode = func(c *nodeproxy.Config) { c.Retry.Attempts = 2 }
	sick := p.pods[0].App(8080)
	p.Start()
	if err := sick.Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	c, err := meshtest.Dial(p.listen.hello)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "hello 1\n")
	io.ReadAll(c)
	c.Close()
	line := p.client().Log.Await(t, "connection", "direction", "outbound")
	if !line.Has("level", "warn", "source", p.shop.UID, "service", "hello.default.svc.cluster.local", "port", 80, "network", "west",
		"workload", p.pods[0].UID, "gateway", "gw-1", "attempts", 3, "result", "refused") {
		t.Errorf("the line says %v", line)
	}
	var tried []struct {
		Pod, Gateway, Reason, Error string
		Times                       int
	}
	b, _ := json.Marshal(line["tried"])
	if err := json.Unmarshal(b, &tried); err != nil || len(tried) != 1 || tried[0].Times != 3 {
		t.Fatalf("tried: %s (%v); want one place that was tried 3 times", b, err)
	}
	cause := fmt.Sprintf("dial tcp %s: connect: connection refused", p.pods[0].At(8080))
	for _, at := range tried {
		if at.Pod != p.pods[0].UID || at.Gateway != "gw-1" || at.Reason != "refused" || !strings.Contains(at.Error, cause) {
			t.Errorf("tried %+v; want the pod, its gateway, and the cause %q", at, cause)
		}
	}
	for _, l := range p.client().Log.Find("attempt failed") {
		if l.Text("level") != "debug" {
			t.Errorf("a single attempt at level %s", l.Text("level"))
		}
	}
}

// What a peer says has happened is bounded, and cannot break a line or a terminal.
func TestACauseIsOnlyText(t *testing.T) {
	for in, want := range map[string]string{
		"dial tcp 10.0.0.7:8080: connect: connection refused": "dial tcp 10.0.0.7:8080: connect: connection refused",
		"line\r\nisthmus-pin: 1\x1b[31m":                      "line??isthmus-pin: 1?[31m",
		strings.Repeat("é", 300):                              "..." + strings.Repeat("?", 197),
		strings.Repeat("open: ", 90) + "connection refused":   "..." + (strings.Repeat("open: ", 90) + "connection refused")[90*6+18-197:],
		"\xff\xfe ": "??",
	} {
		if got := hbone.Cause(in); got != want {
			t.Errorf("Cause(%q) = %q; want %q", in, got, want)
		}
	}
}
