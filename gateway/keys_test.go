package gateway_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

func TestAGatewayWarnsOfNetworksWhoseKeyIsNotKnown(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east", "west")
	m.Gateway("east", "gw-1")
	m.Gateway("east", "gw-2")
	m.Gateway("east", "gw-3")
	m.Gateway("west", "gw-1")
	m.Write()
	key, err := networkkey.Generate(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	wrong := filepath.Join(m.Dir(), "wrong.yaml")
	if err := os.WriteFile(wrong, keyfile.FormatKnown(networkkey.Known{"wset": {key.Public()}}), 0o600); err != nil {
		t.Fatal(err)
	}
	east := m.StartGateway("east", "gw-1", func(c *gateway.Config) { c.Federation.Networks = wrong })
	var warned []string
	for _, l := range east.Log.Above() {
		if text := l.Text("message"); strings.HasPrefix(text, "no key for network ") {
			warned = append(warned, text)
		}
	}
	if len(warned) != 1 || !strings.Contains(warned[0], "network west,") || !strings.Contains(warned[0], `did you mean "wset" in `+wrong) || !strings.Contains(warned[0], "isthmus network show") {
		t.Errorf("warnings %q; want one of west that suggests wset", warned)
	}
	alone := m.StartGateway("east", "gw-2", func(c *gateway.Config) { c.Federation.Networks = "" })
	if text := alone.Log.Await(t, "no key for network west, whose gateways "+m.File()+" lists: nothing that they say is believed: set federation.networks to a file with west's entry (`isthmus network show` there prints it)").Text("message"); strings.Contains(text, "did you mean") {
		t.Errorf("%q suggests a network that is known", text)
	}
	// The list of the own network takes no other: a gateway would not start with one in it.
	own := ""
	m.StartGateway("east", "gw-3", func(c *gateway.Config) {
		own = filepath.Join(c.Federation.Keys, keyfile.ListFile)
		c.Federation.Networks = own
	}).Log.Await(t, "no key for network west, whose gateways "+m.File()+" lists: nothing that they say is believed: set federation.networks to a file of its own with west's entry (`isthmus network show` there prints it): "+own+" is for this network alone")
	for _, l := range m.StartGateway("west", "gw-1").Log.Above() {
		if strings.HasPrefix(l.Text("message"), "no key for network ") {
			t.Errorf("all keys are known: %v", l)
		}
	}
}

// The next key signs nothing yet: a gateway starts beside one that was copied in part.
func TestAGatewayStartsBesideANextKeyThatCannotBeRead(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Gateway("east", "gw-1")
	m.Write()
	dir := m.Keys("east").Dir
	_, err := keyfile.Rotate(dir, rand.Reader)
	if err == nil {
		err = os.Truncate(filepath.Join(dir, keyfile.NextFile), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	gw := m.StartGateway("east", "gw-1")
	if text := gw.Log.Await(t, "the key of this network cannot be rotated").Text("error"); !strings.Contains(text, "remove "+filepath.Join(dir, keyfile.NextFile)) {
		t.Errorf("%q names no remedy", text)
	}
}
