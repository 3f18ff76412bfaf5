//go:build !race

// One goroutine in virtual time: the race detector would find nothing, and take ten times
// as long.

package antientropy

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
)

// Two gateways of which one hears the other through one relay alone, and both the reader and
// the relay have many other peers, whose clocks are too far off to believe any of the three:
// the reader asks the relay when a heartbeat is late, and does not take the other for silent.
func TestWhoIsHeardThroughOneRelayIsNeverSilent(t *testing.T) {
	for _, loss := range []float64{0, 0.05} {
		w := newWorld(t, "relay", 12, 1)
		reader, relay, origin := w.sites[0], w.sites[1], w.sites[11]
		w.block(reader, origin)
		for _, s := range []*site{reader, relay, origin} {
			s.clock = -365 * 24 * time.Hour
		}
		for _, s := range w.sites {
			w.start(s)
			w.publish(s, export(0), healthy(0, 10))
		}
		w.run(40 * time.Second)
		w.loss = loss
		silent := 0
		for range 200 {
			w.run(time.Second)
			if st, _ := reader.status(origin.key.ID()); st.Phase != ledger.Live {
				silent++
			}
		}
		// An instance is silent if nothing comes for 6 s: three questions, or their answers, are
		// lost in a row, one in 1 000 heartbeats at 5 % loss; or two of the relay's own.
		if bound := int(200 * loss / 2); silent > bound {
			t.Errorf("at %.0f %% loss %d s of 200 without the origin; want at most %d", 100*loss, silent, bound)
		} else {
			t.Logf("at %.0f %% loss %d s of 200 without the origin", 100*loss, silent)
		}
	}
}

// While nothing changes digests of one gateway cost about the same, however many there
// are; each change brings them back to one a second.
func TestDigestsComeSeldomWhileNothingChangesAmongMany(t *testing.T) {
	w := newWorld(t, "seldom", 50, 1)
	for _, s := range w.sites {
		w.start(s)
	}
	w.run(20 * time.Second)
	digests := 0
	w.record = func(_ string, b []byte) {
		var m pb.Message
		if proto.Unmarshal(b, &m) == nil && m.GetDigest() != nil {
			digests++
		}
	}
	w.run(10 * time.Second)
	quiet := digests
	if most := 10 * many * 3 / 2; quiet > most {
		t.Errorf("50 gateways sent %d digests in 10 s with nothing changing; want at most %d", quiet, most)
	}
	for n := range 10 {
		w.publish(w.sites[7], healthy(0, uint32(n)))
		w.run(time.Second)
	}
	if busy := digests - quiet; busy < 10*50*9/10 {
		t.Errorf("50 gateways sent %d digests in 10 s of changes; want one a second each", busy)
	}
}
