package gossip

import (
	"errors"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/mesh"
)

func TestRefusalsAreOfListedGatewaysAndEnd(t *testing.T) {
	listed := func(name string) bool { return name == "west/gw-1" || name == "west/gw-2" }
	linked := func(network string) bool { return network == "north" }
	now := time.Now()
	var r refusals
	for _, gateway := range []string{"gw-2", "gw-1", "gw-1", "nobody"} {
		r.note(errors.Join(errors.New("message"), &networkkey.RefusedError{Reason: networkkey.WrongKey, Network: "west", Gateway: gateway, Detail: "not signed"}), listed, linked, now)
	}
	r.note(errors.New("no certificate at all"), listed, linked, now)
	if got := r.recent(now); len(got) != 2 || got[0].Error() > got[1].Error() {
		t.Errorf("refused are %v; want gw-1 and gw-2", got)
	}
	r.note(&networkkey.RefusedError{Reason: networkkey.Expired, Network: "west", Gateway: "gw-2"}, listed, linked, now.Add(refusedFor))
	if got := r.recent(now.Add(refusedFor + 1)); len(got) != 1 {
		t.Errorf("after a while refused are %v; want gw-2, which was seen again", got)
	}
	if r.clear(); len(r.recent(now)) != 0 {
		t.Error("other keys are known, and what the old ones refused is spoken of")
	}
}

// Of a network that is linked, and whose gateways are not listed, one is held, whatever they call
// themselves.
func TestOneRefusalIsHeldOfALinkedNetwork(t *testing.T) {
	nobody, linked, now := func(string) bool { return false }, func(network string) bool { return network == "north" }, time.Now()
	var r refusals
	for _, gateway := range []string{"gw-1", "gw-2", "gw-3"} {
		for _, network := range []string{"north", "nowhere"} {
			r.note(&networkkey.RefusedError{Reason: networkkey.WrongKey, Network: network, Gateway: gateway}, nobody, linked, now)
		}
	}
	if got := r.recent(now); len(got) != 1 {
		t.Errorf("refused are %v; want the last of north alone", got)
	}
}

// A file of keys that is garbage changes nothing, and is told for as long as it is.
func TestKeysErrorLastsUntilTheKeysAreRead(t *testing.T) {
	w := newWorld(t)
	g := w.add("east", "gw-1")
	var garbage error
	f, err := New(Config{Name: g.Name, Network: g.Network, Self: g.Identity, Identity: w.identity,
		Keys: func() (Keys, error) {
			if garbage != nil {
				return Keys{}, garbage
			}
			return w.keysOf("east")
		}, Peers: func() []*mesh.Gateway { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	for _, garbage = range []error{nil, errors.New("garbage"), nil} {
		f.reread() // what renew does every 10 s
		if got := f.KeysError(); got != garbage {
			t.Errorf("KeysError() = %v, want %v", got, garbage)
		}
		if !f.Knows("east") || f.Knows("nowhere") {
			t.Error("the keys read before are not used")
		}
	}
}
