package nodeproxy_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// A pod that answers with whatever status and reason it likes makes no label
// values of them.
func TestWhatAPeerAnswersIsNoLabel(t *testing.T) {
	m := meshtest.New(t)
	m.EachNode = func(c *nodeproxy.Config) { c.Retry.Attempts = 2 }
	m.Networks("west")
	shop := m.Pod("west", "west-1", "shop-1")
	odd := m.Pod("west", "", "odd-1", "odd")
	listener := shop.Outbound(m.Service("odd", 80, 8080) + ":80")
	cfg := m.Manager().ServerTLS(odd.Identity(), nil, "h2")
	var answers atomic.Int64
	odd.Serve(meshtest.HBONEPort, func(raw *net.TCPConn) {
		tr, err := hbone.ServerTLS(context.Background(), raw, cfg)
		if err != nil {
			return
		}
		hbone.NewServer(tr, hbone.DefaultConfig(), func(_ context.Context, in *hbone.Incoming) {
			n := int(answers.Add(1))
			in.Refuse(520+n%60, hbone.Header{header.NameReason: fmt.Sprintf("odd_%d", n)})
		}).Serve(context.Background())
	})
	m.Start()
	proxy := m.Process("node proxy west-1")
	for range 10 {
		if _, err := meshtest.Hello(listener); err == nil {
			t.Fatal("a connection that was refused has succeeded")
		}
	}
	_, metrics := proxy.Get(t, "/metrics")
	for line := range strings.Lines(metrics) {
		if strings.Contains(line, `le="`) {
			continue // a bucket of a histogram
		}
		if strings.Contains(line, `="odd`) || strings.Contains(line, `="5`) || strings.Contains(line, `="status_`) {
			t.Errorf("a label comes from the peer: %s", line)
		}
	}
	if n := proxy.Metric(t, `isthmus_connections_closed_total{reporter="source",result="status"}`); n == 0 || answers.Load() < 10 {
		t.Errorf("%v connections ended with result status after %d answers", n, answers.Load())
	}
}
