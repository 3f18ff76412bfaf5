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
	if len(warned) != 1 || !strings.Contains(warned[0], "network west,") || !strings.Contains(warned[0], "wset") {
		t.Errorf("warnings %q; want one of west that suggests wset", warned)
	}
	for _, l := range m.StartGateway("west", "gw-1").Log.Above() {
		if strings.HasPrefix(l.Text("message"), "no key for network ") {
			t.Errorf("all keys are known: %v", l)
		}
	}
}
