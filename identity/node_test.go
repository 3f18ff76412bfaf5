package identity

import (
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func TestANodesIdentityHoldsItsNetworkAndName(t *testing.T) {
	account := spiffeid.RequireFromString("spiffe://cluster.local/ns/isthmus-system/sa/nodeproxy")
	id, err := NodeID(account, "west", "node-1.example")
	if err != nil || id.String() != "spiffe://cluster.local/ns/isthmus-system/sa/nodeproxy/node/west/node-1.example" {
		t.Fatalf("got %v, %v", id, err)
	}
	a, network, node, ok := NodeOf(id)
	if !ok || a != account || network != "west" || node != "node-1.example" {
		t.Errorf("got %v %q %q %v", a, network, node, ok)
	}
	for _, c := range [][2]string{{"", "n"}, {"west", ""}, {"west", ".."}, {"west", "a/b"}, {"we st", "n"}} {
		if id, err := NodeID(account, c[0], c[1]); err == nil {
			t.Errorf("network %q, node %q: got %v; want an error", c[0], c[1], id)
		}
	}
	if _, err := NodeID(id, "west", "node-1"); err == nil {
		t.Error("a node's identity was taken for a service account")
	}
	for _, s := range []string{
		"spiffe://cluster.local/ns/a/sa/b", "spiffe://cluster.local/ns/a/sa/b/node/west", "spiffe://cluster.local/ns/a/sa/b/nodes/west/n",
		"spiffe://cluster.local/ns/a/sa/b/node/west/n/more", "spiffe://cluster.local",
	} {
		if _, _, _, ok := NodeOf(spiffeid.RequireFromString(s)); ok {
			t.Errorf("%s was taken for a node's identity", s)
		}
	}
}

func TestNodeIdentitiesAreIssuedByOperatorsAndReadFromFiles(t *testing.T) {
	ca, err := InitCA(t.TempDir(), meshTD)
	if err != nil {
		t.Fatal(err)
	}
	const text = "spiffe://cluster.local/ns/isthmus-system/sa/nodeproxy/node/west/node-1"
	id, err := ParseIssued(text)
	if err != nil {
		t.Fatal(err)
	}
	svid, err := ca.Issue(id, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := WriteSVID(dir, svid); err != nil {
		t.Fatal(err)
	}
	got, err := FileSource{Dir: dir}.Fetch(t.Context(), id)
	if err != nil || got.ID != id {
		t.Errorf("from files: got %v, %v", got, err)
	}
	// Whoever asks a CA for a certificate asks for a workload's.
	if _, err := ParseID(text); err == nil {
		t.Error("a request may ask for the identity of a node proxy")
	}
	for _, s := range []string{text + "/more", "spiffe://cluster.local/ns/a/sa/b/node/west", "spiffe://cluster.local"} {
		if _, err := ParseIssued(s); err == nil {
			t.Errorf("%s would be issued", s)
		}
	}
}
