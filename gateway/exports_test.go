package gateway_test

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// A client's node proxy whose discovery lists its own network alone: what west exports is
// reachable by each of its names, as soon as it is asked for, and no longer than west
// says so.
func TestWhatAnotherNetworkExportsIsReachableWithoutALineInDiscovery(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east", "west")
	m.Gateway("east", "gw-1")
	m.Gateway("west", "gw-1")
	m.Service("hello", 80, 8080)
	m.Service("late", 80, 8080)
	shop := m.Pod("east", "east-1", "shop-1")
	m.Pod("west", "west-1", "hello-1", "hello", "late").App(8080)
	m.Write()
	m.StartGateway("east", "gw-1").AwaitReady(t)
	m.StartGateway("west", "gw-1").AwaitReady(t)
	m.StartNode("west", "west-1").AwaitReady(t)
	own, links := m.WriteOwn("east"), m.LinkFile("east")
	m.StartNode("east", "east-1", func(c *nodeproxy.Config) {
		c.Discovery.File, c.Federation.Networks = own, links
	}).AwaitReady(t)

	reach := func(name string) error {
		c, err := shop.Connect(name)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = meshtest.Ask(c, "1")
		return err
	}
	names := []string{"hello.default.svc.cluster.local:80", "hello.default.mesh.internal:80"}
	for _, name := range names {
		meshtest.Eventually(t, name+" is reachable", func() bool { return reach(name) == nil })
	}
	if err := reach("late.default.svc.cluster.local:80"); err != nil { // the gateways know by now
		t.Errorf("the first connection to a service: %v", err)
	}
	var refused *meshtest.SocksError
	for range 3 {
		if err := reach("nobody.default.svc.cluster.local:80"); !errors.As(err, &refused) {
			t.Errorf("a name that nobody exports: %v; want it refused", err)
		}
	}
	m.EditService("hello", func(s *discovery.Service) { s.Global = false })
	m.Write()
	for _, name := range names {
		meshtest.Eventually(t, name+" is withdrawn", func() bool { err := reach(name); return errors.As(err, &refused) })
	}
	m.EditService("hello", func(s *discovery.Service) { s.Global = true })
	m.Write()
	for _, name := range names {
		meshtest.Eventually(t, name+" is exported again", func() bool { return reach(name) == nil })
	}
}

// A misspelt network in the links of a node proxy is told, as soon as its gateway holds
// what the network says.
func TestANodeProxySaysWhichNetworkItsLinksDoNotHave(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east", "west")
	m.Gateway("east", "gw-1")
	m.Gateway("west", "gw-1")
	m.Pod("east", "east-1", "shop-1")
	m.Write()
	m.StartGateway("east", "gw-1").AwaitReady(t)
	m.StartGateway("west", "gw-1").AwaitReady(t)
	own, links := m.WriteOwn("east"), m.LinkFile("east")
	b, err := os.ReadFile(links)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(links, bytes.ReplaceAll(b, []byte("west"), []byte("wset")), 0o600); err != nil {
		t.Fatal(err)
	}
	east := m.StartNode("east", "east-1", func(c *nodeproxy.Config) {
		c.Discovery.File, c.Federation.Networks = own, links
	})
	east.Log.Await(t, "network west is not linked; its exports are ignored: did you mean \"wset\" in "+links+"? Otherwise add what `isthmus network show` prints there")
}
