package linkcard

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/identity"
)

// card makes one of a new network.
func card(t *testing.T, network, domain string) Card {
	t.Helper()
	key, err := networkkey.Generate(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := identity.InitCA(t.TempDir()+"/ca", spiffeid.RequireTrustDomainFromString(domain))
	if err != nil {
		t.Fatal(err)
	}
	return Card{Version: Version, Network: network, TrustDomain: domain, Keys: []string{key.Public().String()}, Addresses: []string{"203.0.113.7:15008"}, Roots: Bundle([]*x509.Certificate{ca.Certificate()})}
}

func TestCardIsReadAsItWasPrinted(t *testing.T) {
	c := card(t, "west", "cluster.local")
	got, err := Parse("west.card", c.Format())
	if err != nil || !bytes.Equal(got.Format(), c.Format()) {
		t.Fatalf("%v\n%s\nwant\n%s", err, got.Format(), c.Format())
	}
}

func TestCardThatCannotBeNamesItsField(t *testing.T) {
	for want, spoil := range map[string]func(*Card){
		"version: 2":   func(c *Card) { c.Version = 2 },
		"network: ":    func(c *Card) { c.Network = "West!" },
		"trustDomain:": func(c *Card) { c.TrustDomain = "spiffe://x/y" },
		"keys[0]:":     func(c *Card) { c.Keys[0] = "nonsense" },
		"keys: ":       func(c *Card) { c.Keys = nil },
		"addresses[0]": func(c *Card) { c.Addresses = []string{"no port"} },
		"roots: there": func(c *Card) { c.Roots = "" },
		"roots: the":   func(c *Card) { c.TrustDomain = "other.local" },
		"never give":   func(c *Card) { c.Roots = "-----BEGIN EC PRIVATE KEY-----\nAA==\n-----END EC PRIVATE KEY-----\n" },
	} {
		c := card(t, "west", "cluster.local")
		spoil(&c)
		if _, err := Parse("west.card", c.Format()); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "isthmus link card") {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// sharing gives c the roots of o.
func sharing(c, o Card) Card {
	c.TrustDomain, c.Roots = o.TrustDomain, o.Roots
	return c
}

// A card says for which trust domain its roots vouch: never without being asked for one that
// is the own, or another network's, unless these have the same roots.
func TestACardTakesNoTrustDomainOfOthers(t *testing.T) {
	own, west := card(t, "east", "east.local"), card(t, "west", "west.local")
	f, err := Join(keyfile.File{}, own, west, false)
	if err != nil {
		t.Fatal(err)
	}
	stolen := card(t, "south", "west.local")
	both := stolen
	both.Roots = west.Roots + stolen.Roots
	later := card(t, "west", "east.local")
	later.Keys = west.Keys
	for name, x := range map[string]struct {
		card Card
		ok   bool
		says string
	}{
		"the own":                             {card(t, "south", "east.local"), false, "this cluster"},
		"another network's":                   {stolen, false, `network "west"`},
		"another network's, and its roots":    {both, false, `network "west"`},
		"the own, of a network that has its":  {later, false, "this cluster"},
		"the own, by the same root":           {sharing(card(t, "south", "x.local"), own), true, ""},
		"another network's, by the same root": {sharing(card(t, "south", "x.local"), west), true, ""},
		"its own":                             {card(t, "south", "south.local"), true, ""},
	} {
		got, err := Join(f, own, x.card, false)
		if x.ok != (err == nil) || !x.ok && (!errors.Is(err, ErrTrustDomain) || !strings.Contains(err.Error(), x.says) || !strings.Contains(err.Error(), "--share-trust-domain")) {
			t.Errorf("%s: %v; want it taken: %t", name, err, x.ok)
		}
		if !x.ok {
			if b := keyfile.Roots(links(got)); len(b[spiffeid.RequireTrustDomainFromString("east.local")]) != 0 || len(b[spiffeid.RequireTrustDomainFromString("west.local")]) != 1 {
				t.Errorf("%s: refused, and believed: %v", name, b)
			}
			if got, err = Join(f, own, x.card, true); err != nil {
				t.Errorf("%s, shared: %v", name, err)
			}
			if _, err := Join(got, own, x.card, false); err != nil {
				t.Errorf("%s, shared, linked again: %v", name, err)
			}
		}
	}
	same, err := Join(keyfile.File{}, own, sharing(card(t, "south", "x.local"), own), false)
	if err != nil || len(same.Networks[0].TrustBundles) != 0 {
		t.Errorf("%v: with one root the file has roots of its own, which would outlive a rotation: %+v", err, same.Networks)
	}
}

func links(f keyfile.File) map[string]keyfile.Link {
	out := map[string]keyfile.Link{}
	for _, n := range f.Networks {
		out[n.Name] = n.Link
	}
	return out
}

func TestLinkingTwiceIsLinkingOnceAndKeepsWhatOperatorsWrote(t *testing.T) {
	east, west, north := card(t, "east", "cluster.local"), card(t, "west", "cluster.local"), card(t, "north", "cluster.local")
	var f keyfile.File
	join := func(c Card) {
		t.Helper()
		var err error
		if f, err = Join(f, east, c, true); err != nil {
			t.Fatal(err)
		}
		if f, err = keyfile.ParseFile("networks.yaml", f.Format()); err != nil {
			t.Fatal(err)
		}
	}
	join(west)
	if a := f.Networks[0].Addresses; !slices.Equal(a, west.Addresses) {
		t.Errorf("its gateways are dialed at %q, want %q", a, west.Addresses)
	}
	f.Networks[0].MaxCapacity, f.Networks[0].Namespaces = 7, []string{"shop"}
	join(north)
	before := string(f.Format())
	join(west)
	if got := string(f.Format()); got != before {
		t.Errorf("linked again\n%s\nwant\n%s", got, before)
	}
	next := card(t, "west", "cluster.local").Keys[0] // it is rotated: both are listed
	west.Keys = []string{west.Keys[0], next}
	join(west)
	if !slices.Equal(f.Networks[0].Keys, west.Keys) || f.Networks[0].MaxCapacity != 7 {
		t.Errorf("rotated: %+v", f.Networks[0])
	}
	if _, err := Join(f, east, card(t, "west", "cluster.local"), true); !errors.Is(err, ErrOtherKeys) {
		t.Errorf("another cluster of the name: %v", err)
	}
	if _, err := Join(f, east, card(t, "east", "cluster.local"), true); err == nil || !strings.Contains(err.Error(), "both clusters") {
		t.Errorf("its own name: %v", err)
	}
	south := card(t, "south", "south.local")
	join(south)
	if b := f.Networks[2].TrustBundles; len(b) != 1 || b[0].TrustDomain != "south.local" || b[0].Roots != south.Roots {
		t.Errorf("another trust domain: %+v", b)
	}
	f, _ = Drop(f, "south")
	f, there := Drop(f, "west")
	if _, again := Drop(f, "west"); !there || again || len(f.Networks) != 1 || f.Networks[0].Name != "north" {
		t.Errorf("unlinked: %+v", f)
	}
	f, _ = Drop(f, "north")
	if _, err := keyfile.ParseKnown("networks.yaml", f.Format()); err != nil {
		t.Errorf("of none: %v", err)
	}
}

// A network that changes its trust domain is believed for both, as its identities are of both
// for a while; who has linked it is told so, and unlinking ends it.
func TestANetworkThatChangesItsTrustDomainIsBelievedForBoth(t *testing.T) {
	east, west := card(t, "east", "east.local"), card(t, "west", "west.local")
	f, err := Join(keyfile.File{}, east, west, false)
	if err != nil {
		t.Fatal(err)
	}
	if d := Beside(f, west); len(d) != 0 {
		t.Errorf("beside its own it is believed for %q", d)
	}
	moved := card(t, "west", "new.local")
	moved.Keys = west.Keys
	if f, err = Join(f, east, moved, false); err != nil {
		t.Fatal(err)
	}
	b := f.Networks[0].TrustBundles
	if d := Beside(f, moved); !slices.Equal(d, []string{"west.local"}) || len(b) != 2 || b[0].TrustDomain != "new.local" || b[1].Roots != west.Roots {
		t.Errorf("beside %q: %+v; want the new one first, and the old one", d, b)
	}
	f, _ = Drop(f, "west")
	if f, err = Join(f, east, moved, false); err != nil || len(Beside(f, moved)) != 0 || len(f.Networks[0].TrustBundles) != 1 {
		t.Errorf("unlinked and linked: %+v, %v", f.Networks, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("version: 1\nnetwork: west\nkeys: [a]\nroots: b\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := Parse("card", b); err == nil {
			if _, err := Parse("card", c.Format()); err != nil {
				t.Errorf("what was read is not printed so that it can be read: %v", err)
			}
		}
	})
}
