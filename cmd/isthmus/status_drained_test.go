package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// A network all of whose gateways the client's discovery drains takes connections from there
// as long as there is no other: that is not "all is known and healthy".
func TestStatusOfANetworkWhoseGatewaysAreAllDrained(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east", "west")
	m.Service("hello", 80, 8080)
	m.Gateway("east", "gw-1")
	m.Gateway("west", "gw-1")
	shop := m.Pod("east", "east-1", "shop-1")
	m.Pod("west", "west-1", "hello-1", "hello").App(8080)
	m.Pod("west", "west-2", "hello-2", "hello").App(8080)
	east, file := eastsOwnFile(t, m)
	write := func(data []byte) {
		if err := os.WriteFile(east+".new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(east+".new", east); err != nil {
			t.Fatal(err)
		}
	}
	write(file)
	m.Start()
	east1 := m.Process("node proxy east-1")
	status := func() (code int, row string) {
		code, out, _ := isthmus(t, "status", "--admin", east1.Admin.String())
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "west ") {
				row = strings.TrimSpace(line)
			}
		}
		return code, row
	}
	connects := func() error {
		c, err := shop.Connect(hello + ":80")
		if err == nil {
			c.Close()
		}
		return err
	}
	meshtest.Eventually(t, "all is known and connections are made", func() bool {
		err := connects()
		code, _ := status()
		return err == nil && code == exitOK
	})
	drained := regexp.MustCompile(`(?s)(\ngateways:.*?\n)( +)network: west\n`).ReplaceAll(file, []byte("${1}${2}network: west\n${2}drained: true\n"))
	if len(drained) == len(file) {
		t.Fatalf("no gateway of west in\n%s", file)
	}
	write(drained)
	meshtest.Eventually(t, "status says that all of it drains", func() bool {
		code, row := status()
		return code != exitOK && strings.Contains(row, "all of it (draining)")
	})
	_, explained, _ := isthmus(t, "explain", "east/default/shop-1", hello+":80", "--admin", east1.Admin.String())
	if err := connects(); err != nil {
		t.Errorf("there is no other gateway, and a connection fails: %v; explain says\n%s", err, explained)
	}
	if !regexp.MustCompile(`gw-1 used although out, .*: drained`).MatchString(explained) {
		t.Errorf("explain does not say that the gateway is used although it is drained:\n%s", explained)
	}
}

// eastsOwnFile gives node proxies in the east a discovery file of their own, which is not
// written yet, and returns what that of all others says.
func eastsOwnFile(t *testing.T, m *meshtest.Mesh) (path string, all []byte) {
	t.Helper()
	m.Write()
	all, err := os.ReadFile(m.File())
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(m.Dir(), "east.yaml")
	m.EachNode = func(c *nodeproxy.Config) {
		if c.Network == "east" {
			c.Discovery.File = path
		}
	}
	return path, all
}
