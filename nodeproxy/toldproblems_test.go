package nodeproxy

import (
	"fmt"
	"os"
	"testing"

	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// What does not hold of another network's gateways and exports is a problem for as long as
// these are there: that network cannot have a node proxy keep more of them, or call itself
// unwell for ever.
func TestProblemsOfOtherNetworksEndWithWhatTheyAreOf(t *testing.T) {
	w := newToldWorld(t, "")
	nameless := func(name string) healthstream.Gateway {
		return healthstream.Gateway{Name: name, Instance: record.Instance{1}, Live: true, Body: &record.Network{Gateway: name, Addresses: []record.Address{{Host: "gw.example.com", Port: 15008}}}}
	}
	expect := func(when string, want int) {
		t.Helper()
		if p := w.problems(); len(p) != want || len(w.faults) != want {
			t.Errorf("%s: %d problems %.300q, %d kept; want %d", when, len(p), p, len(w.faults), want)
		}
	}
	w.proven.offer(shopName, shopExport(nil))
	for i := range 100 { // a certificate for one process under another name each time
		w.proven.gateways["west"] = []healthstream.Gateway{nameless(fmt.Sprintf("gw-%d", i)), nameless("gw-last")}
		w.update(shopName)
	}
	expect("two gateways have no address", 2)
	w.proven.gateways["west"] = []healthstream.Gateway{gatewayAt("gw-1", 1, true, false), gatewayAt("gw-last", 2, true, false)}
	w.update(shopName)
	expect("all gateways have one", 0)

	w.proven.gateways["west"] = []healthstream.Gateway{nameless("gw-1")}
	w.update(shopName)
	expect("the only gateway has none", 1)
	w.proven.gateways = nil
	w.proven.offer(shopName, nil)
	w.update(shopName)
	expect("nothing of west is left", 0)

	w.proven.gateways = map[string][]healthstream.Gateway{"west": {nameless("gw-1")}}
	w.proven.offer("pay.payments.svc.cluster.local", shopExport(nil))
	w.update("pay.payments.svc.cluster.local")
	expect("an export of another namespace, by a gateway without an address", 2)
	if err := os.WriteFile(w.path, []byte("networks: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.file.Reread(); err != nil {
		t.Fatal(err)
	}
	w.relinked()
	expect("west is unlinked", 0)
}
