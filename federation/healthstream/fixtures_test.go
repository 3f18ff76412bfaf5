package healthstream

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

// signedToday is what the fixtures say that a gateway of another network has signed, and
// of which networks all is held.
func signedToday(t testing.TB) map[string]*pb.StreamMessage {
	t.Helper()
	east := newSpeaksSince(t, "east", "gw-e", "fixture", keyOf(t, "east"), time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC))
	east.say(exportOf(shopID))
	east.say(healthOf(9))
	out := map[string]*pb.StreamMessage{}
	for name, b := range map[string][]byte{
		"proofs":          proofsMessage(appendProof(nil, encodeProof(east.voice()))),
		"signed-services": servicesMessage(appendService(nil, service, true, false, [][]byte{encodeShare(shareFrom(east.voice()))})),
		"holdings":        holdingsMessage([]string{"east", "north"}),
	} {
		m, err := decode(b)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = m
	}
	return out
}

// What a gateway of November 2026 passes on is proven to a node proxy of today, byte for
// byte as it was written then: the certificate, the network record and each signature. Of
// networks that it holds all of, silence withdraws.
func TestProofsOfNovember2026AreBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the clock is years behind: certificates of the future hold
		old := fixtures(t)
		read := func(name string) *pb.StreamMessage {
			m, err := decode(old[name])
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return m
		}
		s := newServices(10, newVerified("west", networkkey.Known{"east": {keyOf(t, "east").Public()}}))
		s.use(service, false)
		up := newUplink("gw", nil)
		s.attach(up)
		if err := s.introduce(up, read("proofs").GetProofs(), time.Now()); err != nil {
			t.Fatal(err)
		}
		if odd, err := s.take(up, read("signed-services").GetServices()); err != nil || odd != 0 {
			t.Fatalf("services: %d odd, %v", odd, err)
		}
		k, _ := s.get("east", service)
		if k.Offer == nil || !slices.Equal(k.Offer.Identities, []spiffeid.ID{shopID}) {
			t.Errorf("proven: %+v; want an export to %v", k.Offer, shopID)
		}
		if h, ok := HealthOf(k.Deliveries, 80); !ok || h.Healthy != 9 {
			t.Errorf("health %+v, known %v; want 9 healthy", h, ok)
		}
		silence, err := decode(servicesMessage(appendService(nil, service, true, false, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.take(up, silence.GetServices()); err != nil {
			t.Fatal(err)
		}
		if k, _ := s.get("east", service); k.Offer == nil {
			t.Error("silence of a gateway that does not hold all of east has withdrawn an export")
		}
		if err := s.hold(up, read("holdings").GetHoldings()); err != nil {
			t.Fatal(err)
		}
		if k, _ := s.get("east", service); k.Offer != nil {
			t.Errorf("silence of a gateway that holds all of east withdraws nothing: %+v", k.Offer)
		}
	})
}
