package mesh

import (
	"testing"

	"pgregory.net/rapid"
)

func TestEndpointIDIsStableAndTellsNetworkAndUIDApart(t *testing.T) {
	// Frozen: gateways and node proxies of different releases must agree.
	if got, want := EndpointIDOf("west", "cluster-1//Pod/shop/web-1").String(), "ee21a50ab3dd4f42"; got != want {
		t.Errorf("got %s, want %s: the derivation has changed", got, want)
	}
	seen := map[EndpointID][2]string{}
	for _, p := range [][2]string{{"west", "a"}, {"east", "a"}, {"west", "b"}, {"wes", "ta"}, {"westa", ""}, {"", "westa"}, {"", ""}, {"1", "1:1"}, {"11:", "1"}} {
		id := EndpointIDOf(p[0], p[1])
		if other, twice := seen[id]; twice {
			t.Errorf("%q and %q share %s", p, other, id)
		}
		seen[id] = p
	}
}

func TestEndpointIDSurvivesItsWireForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := EndpointID(rapid.Uint64Min(1).Draw(t, "id"))
		got, err := ParseEndpointID(id.String())
		if err != nil || got != id || len(id.String()) != 16 {
			t.Fatalf("%d became %q became %d, %v", uint64(id), id, uint64(got), err)
		}
	})
}

func TestParseEndpointIDRefusesEverythingElse(t *testing.T) {
	for _, s := range []string{"", "0", "0000000000000000", "ee21a50ab3dd4f4", "ee21a50ab3dd4f421", "ee21a50ab3dd4f4g", "-e21a50ab3dd4f42", "+e21a50ab3dd4f42", "0xe21a50ab3dd4f4", " ee21a50ab3dd4f4", "ee21_50ab3dd4f42"} {
		if id, err := ParseEndpointID(s); err == nil {
			t.Errorf("ParseEndpointID(%q) = %s, want an error", s, id)
		}
	}
}

func FuzzParseEndpointID(f *testing.F) {
	f.Add("ee21a50ab3dd4f42")
	f.Add("EE21A50AB3DD4F42")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseEndpointID(s)
		if err == nil && id == 0 {
			t.Errorf("%q was read as the zero ID", s)
		}
	})
}
