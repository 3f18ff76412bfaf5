package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// A gateway whose service account is not the one that is expected is refused with all of
// the cause, and with the key that names the account: that of the link where nothing else
// tells of the gateway, that of discovery where it is listed.
func TestStatusSaysWhereTheServiceAccountOfARefusedGatewayIsWritten(t *testing.T) {
	for name, linked := range map[string]bool{"told by its network": true, "listed": false} {
		t.Run(name, func(t *testing.T) {
			m := meshtest.New(t)
			m.Networks("east", "west")
			m.Service("hello", 80, 8080)
			m.Gateway("east", "gw-1")
			m.Gateway("west", "gw-1")
			shop := m.Pod("east", "east-1", "shop-1")
			m.Pod("west", "west-1", "hello-1", "hello").App(8080)
			m.Write()
			m.StartGateway("east", "gw-1").AwaitReady(t)
			m.StartGateway("west", "gw-1").AwaitReady(t)
			m.StartNode("west", "west-1").AwaitReady(t)
			misled := func(path string) string {
				b, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				path += ".misled"
				if err := os.WriteFile(path, bytes.ReplaceAll(b, []byte("gateway-west"), []byte("gateway")), 0o600); err != nil {
					t.Fatal(err)
				}
				return path
			}
			want := "write serviceAccount: isthmus-system/gateway-west at gateways[] of network west in the discovery file"
			east1 := m.StartNode("east", "east-1", func(c *nodeproxy.Config) {
				if !linked {
					c.Discovery.File = misled(m.File())
					return
				}
				c.Discovery.File, c.Federation.Networks = m.WriteOwn("east"), misled(m.LinkFile("east"))
				want = "write gatewayServiceAccount: isthmus-system/gateway-west at network west in federation.networks (" + c.Federation.Networks + ")"
			})
			east1.AwaitReady(t)
			meshtest.Eventually(t, "status says what was expected, who answered and where to write it", func() bool {
				if c, err := shop.Connect(hello + ":80"); err == nil {
					c.Close()
					t.Fatal("a gateway of another identity is used")
				}
				code, out, _ := isthmus(t, "status", "--admin", east1.Admin.String())
				return code == exitFinding && strings.Contains(out, `peer is "spiffe://cluster.local/ns/isthmus-system/sa/gateway-west", expected ["spiffe://cluster.local/ns/isthmus-system/sa/gateway"]`) &&
					strings.Contains(out, "through gateway west/gw-1 at ") && strings.Contains(out, want)
			})
		})
	}
}
