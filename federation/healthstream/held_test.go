package healthstream

import (
	"slices"
	"testing"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

// What gateways hold is known of networks that nobody has linked here, as long as they say so.
func TestNetworksAreHeldAsLongAsAGatewaySaysSo(t *testing.T) {
	s := newServices(10, newVerified("west", networkkey.Known{}))
	a, b := newUplink("gw-1", nil), newUplink("gw-2", nil)
	s.attach(a)
	s.attach(b)
	check := func(step string, want ...string) {
		t.Helper()
		if got := s.held(); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", step, got, want)
		}
	}
	hold := func(l *uplink, networks ...string) {
		t.Helper()
		if err := s.hold(l, &pb.Holdings{Networks: networks}); err != nil {
			t.Fatal(err)
		}
	}
	check("before anything is said")
	hold(a, "north", "east")
	hold(b, "east")
	check("both speak", "east", "north")
	hold(a, "east")
	check("one holds north no more", "east")
	s.detach(a)
	s.detach(b)
	check("nobody is attached")
}
