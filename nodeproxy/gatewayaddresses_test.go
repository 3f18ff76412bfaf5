package nodeproxy

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/rs/zerolog"
)

// namesOf is DNS for gatewayAddresses.
type namesOf struct {
	mu sync.Mutex
	at map[string][]netip.Addr
}

func (n *namesOf) set(name string, at ...netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[name] = at
}

func (n *namesOf) lookup(_ context.Context, name string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if at := n.at[name]; at != nil {
		return slices.Clone(at), nil
	}
	return nil, errors.New("no such host")
}

// some are n addresses below 10.k.0.0.
func some(k byte, n int) (out []netip.Addr) {
	for i := range n {
		out = append(out, netip.AddrFrom4([4]byte{10, k, byte(i >> 8), byte(i + 1)}))
	}
	return out
}

// A name whose old addresses are held, since it is not found, or whose answers always differ,
// or that has very many, shuts nobody out: of each target there are some, the newest first.
func TestNoTargetShutsOutAnother(t *testing.T) {
	names := &namesOf{at: map[string][]netip.Addr{}}
	g := newGatewayAddresses([]string{"a.example:15008", "b.example:15008", "192.0.2.1:15008"}, torturedID("gateway"), zerolog.Nop())
	g.lookup = names.lookup
	has := func(what string, want ...netip.Addr) {
		t.Helper()
		var got []netip.Addr
		for _, x := range g.list() {
			got = append(got, x.Address.Addr())
		}
		for _, a := range append(want, netip.MustParseAddr("192.0.2.1")) {
			if !slices.Contains(got, a) {
				t.Errorf("%s: %d gateways, and %s is none of them", what, len(got), a)
			}
		}
		if len(got) > maxOwnGateways {
			t.Errorf("%s: %d gateways; want at most %d", what, len(got), maxOwnGateways)
		}
	}
	resolve := func() { g.resolve(t.Context()) }
	names.set("a.example", some(1, 300)...)
	resolve()
	has("a alone", some(1, 59)...)
	names.set("a.example") // it is not found any more
	names.set("b.example", some(2, 3)...)
	for range 3 * missedAnswers {
		resolve()
		has("b beside what a has led to", slices.Concat(some(1, 59), some(2, 3))...)
	}
	if g.failing() == nil {
		t.Error("it is not said that a is not found")
	}
	for i := range 40 { // all others each time
		names.set("a.example", some(byte(100+i), 5)...)
		resolve()
		has("b beside a, whose answers differ", slices.Concat(some(byte(100+i), 5), some(2, 3))...)
	}
	names.set("b.example", some(3, 2)...)
	for range missedAnswers {
		resolve()
	}
	for _, x := range g.list() {
		if slices.Contains(some(2, 3), x.Address.Addr()) || x.Address.Addr().As4()[1] == 1 {
			t.Errorf("%s is dialed, which no answer has had for long", x.Address)
		}
	}
}
