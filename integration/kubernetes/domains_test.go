package kubernetes

import (
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/isthmus-mesh/isthmus/federation/linkcard"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/identity"
)

// separate gives each network a certificate authority and a trust domain of its own, and
// makes their link cards. It comes before any process.
func (w *world) separate(gateways int) {
	w.t.Helper()
	w.cards = map[string]linkcard.Card{}
	for _, s := range w.sides {
		dir, domain := "ca-"+s.network, s.network+".local"
		w.isthmus("ca", "init", "--dir", dir, "--trust-domain", domain)
		ca, err := identity.OpenCA(filepath.Join(w.Dir, dir))
		w.must(err)
		key, err := keyfile.Open(filepath.Join(w.Dir, "key-"+s.network))
		w.must(err)
		c := linkcard.Card{Version: linkcard.Version, Network: s.network, TrustDomain: domain, Roots: linkcard.Bundle(ca.Roots())}
		for _, p := range key.Public() {
			c.Keys = append(c.Keys, p.String())
		}
		for i := range gateways {
			c.Addresses = append(c.Addresses, s.gatewayAddress(i)+":15008")
		}
		w.cards[s.network] = c
	}
}

// linked is the file of known networks that isthmus link writes of the others' cards.
func (s *side) linked() string {
	s.world.t.Helper()
	var f keyfile.File
	for _, o := range s.world.sides {
		if o == s {
			continue
		}
		c, err := linkcard.Parse(o.network, s.world.cards[o.network].Format())
		s.world.must(err)
		f, err = linkcard.Join(f, s.world.cards[s.network], c, false)
		s.world.must(err)
	}
	return string(f.Format())
}

// Two clusters of two trust domains, each with a root of its own, know nothing of each other
// but their link cards: pods of both call those of the other, and are named there by the
// identity that they have at home. A trust domain that the card does not say is refused.
func TestTwoTrustDomainsAreLinkedByCards(t *testing.T) {
	w := newWorld(t, 2, "east", "west")
	w.separate(1)
	east, west := w.side("east"), w.side("west")
	back := west.run(t, "till", "till-1", west.nodes[0])
	back.say(t, corev1.ConditionTrue)
	east.expose(t, "stock", global, 8081)
	east.run(t, "stock", "stock-1", east.nodes[1], 8081).say(t, corev1.ConditionTrue)
	s := w.openShop(t, 1, 2, "", 8080)

	const stock = "stock.demo.svc.cluster.local:8081"
	eventually(t, 30*time.Second, "a pod of east answers a pod of west", func() bool { return back.call(stock).err == nil })
	there, here := s.client.start(hello, 20*time.Millisecond), back.start(stock, 20*time.Millisecond)
	eventually(t, 30*time.Second, "100 connections both ways", func() bool {
		return len(there.since(time.Time{})) > 100 && len(here.since(time.Time{})) > 100
	})
	flawless(t, there.Stop())
	flawless(t, here.Stop())
	for _, x := range []struct {
		at   *side
		want string
	}{{west, "spiffe://east.local/ns/demo/sa/shop"}, {east, "spiffe://west.local/ns/demo/sa/till"}} {
		if got := w.callers(t, x.at); len(got) != 1 || !got[x.want] {
			t.Errorf("access logs on %s name the callers %v; want %s alone", x.at.network, got, x.want)
		}
	}
	for _, side := range w.sides {
		if out, code := w.check(t, side.gateways[0].Host, "--wait", "20s"); code != 0 || !strings.Contains(out, "✓ ISTH-308") {
			t.Errorf("check at %s exits with %d:\n%s", side.network, code, out)
		}
	}

	// East is told that west is of another trust domain than it is.
	w.isthmus("ca", "init", "--dir", "ca-wrong", "--trust-domain", "wrong.local")
	ca, err := identity.OpenCA(filepath.Join(w.Dir, "ca-wrong"))
	w.must(err)
	c := w.cards["west"]
	c.TrustDomain, c.Roots = "wrong.local", linkcard.Bundle([]*x509.Certificate{ca.Certificate()})
	w.cards["west"] = c
	began := time.Now()
	w.write("east-knows.yaml", east.linked())
	eventually(t, 30*time.Second, "a pod of west is not believed any more", func() bool { return s.client.call(hello).err != nil })
	why := ""
	eventually(t, 10*time.Second, "the node proxy of the client says why", func() bool { why = w.refused(t, s.client.node, began); return why != "" })
	t.Logf("the client's node proxy says: %s", why)
	if out, code := w.check(t, s.client.node.name); code != 1 || !strings.Contains(out, "spiffe://west.local/ns/demo/sa/hello") || !strings.Contains(out, "trustDomains") {
		t.Errorf("check at the node proxy of the client exits with %d:\n%s", code, out)
	}
	eventually(t, 30*time.Second, "check at east says which trust domain it is", func() bool {
		out, code := w.check(t, east.gateways[0].Host)
		return code == 1 && strings.Contains(out, "west.local") && strings.Contains(out, "wrong.local")
	})
	c.TrustDomain, c.Roots = "west.local", linkcard.Bundle(mustRoots(t, filepath.Join(w.Dir, "ca-west")))
	w.cards["west"] = c
	w.write("east-knows.yaml", east.linked())
	eventually(t, 30*time.Second, "they call again", func() bool { return s.client.call(hello).err == nil })
}

func mustRoots(t *testing.T, dir string) []*x509.Certificate {
	t.Helper()
	ca, err := identity.OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	return ca.Roots()
}

// callers are those that the node proxies of a side have logged as whose connections came in.
func (w *world) callers(t *testing.T, at *side) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, n := range at.nodes {
		b, err := os.ReadFile(filepath.Join(w.Dir, n.name+".log"))
		w.must(err)
		for line := range strings.Lines(string(b)) {
			var l struct{ Message, Direction, Peer, Source string }
			if json.Unmarshal([]byte(line), &l) == nil && l.Message == "connection" && l.Direction == "inbound" {
				out[l.Peer] = true
			}
		}
	}
	return out
}
