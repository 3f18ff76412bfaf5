package main

import (
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// With another gateway of its network alive connections are made, and nobody would know of
// the one that is away but for status and explain.
func TestOneGatewayOfSeveralThatIsAwayIsShownWithWhy(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east", "west")
	m.Service("hello", 80, 8080)
	for _, n := range []string{"east", "west"} {
		m.Gateway(n, "gw-1")
		m.Gateway(n, "gw-2")
	}
	shop := m.Pod("east", "east-1", "shop-1")
	m.Pod("west", "west-1", "hello-1", "hello").App(8080)
	m.Start()
	east1 := m.Process("node proxy east-1").Admin.String()
	status := func(admin string) (code int, out string) {
		code, out, _ = isthmus(t, "status", "--admin", admin)
		return code, out
	}
	connect := func() {
		if c, err := shop.Connect(hello + ":80"); err == nil {
			c.Close()
		}
	}
	meshtest.Eventually(t, "all is known", func() bool {
		connect()
		code, out := status(east1)
		return code == exitOK && !strings.Contains(out, "gateway ")
	})
	m.Process("gateway east/gw-2").Stop(t)
	m.Process("gateway west/gw-2").Stop(t)
	line := func(out, start string) string {
		for l := range strings.Lines(out) {
			if strings.HasPrefix(strings.TrimSpace(l), start) {
				return l
			}
		}
		return ""
	}
	out, code := "", 0
	meshtest.Eventually(t, "the node proxy says of both that they are away", func() bool {
		connect()
		code, out = status(east1)
		own := line(out, "gateway gw-2 of network east out (no health stream, ")
		return code == exitFinding && strings.Contains(own, "connection refused") && line(out, "gateway gw-2 of network west out (") != ""
	})
	if strings.Contains(out, "gateway gw-1") || strings.Contains(out, "no health stream to") {
		t.Errorf("the others are alive:\n%s", out)
	}
	m.Process("gateway west/gw-1").Stop(t) // so that it is met
	meshtest.Eventually(t, "explain says of the one that it would choose why not", func() bool {
		connect()
		_, out, _ = isthmus(t, "explain", "east/default/shop-1", hello+":80", "--admin", east1)
		gw := line(out, "by gateway gw-2 ")
		return strings.Contains(gw, "connect: connection refused), seen by this process; asked again in ")
	})
	if _, out = status(east1); !strings.Contains(line(out, "gateway gw-2 of network west out (connect, "), "connect: connection refused") {
		t.Errorf("status does not say why the gateway is out:\n%s", out)
	}
}
