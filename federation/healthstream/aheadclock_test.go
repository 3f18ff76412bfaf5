package healthstream

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

// The clock of a node is ahead for a moment. What other networks offer is known again
// soon after it is right.
func TestAClockThatWasAheadCostsNoExportForLong(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keyOf(t, "east")
		gw := w.gateway("gw-1", nil)
		east := w.speaker("east", "gw-e", "", key)
		east.say(exportOf(shopID))
		east.say(healthOf(9))
		n, _ := w.linked("node-1", networkkey.Known{"east": {key.Public()}})
		n.attached(1)
		gw.say(service, shareFrom(east.voice()))
		n.offers("before", shopID)
		n.services.expire(time.Now().Add(25 * time.Hour)) // as Run does every 250 ms, by the clock of the node
		for _, after := range []time.Duration{time.Second, time.Minute, time.Hour, 6 * time.Hour} {
			time.Sleep(after)
			gw.say(service, shareFrom(east.voice())) // as it says all the time
			n.offers(fmt.Sprintf("%v after the clock was set right", after), shopID)
		}
	})
}

// A certificate that is introduced while the clock is ahead proves nothing until it is
// right, and then all.
func TestACertificateToldWhileTheClockIsAheadCountsWhenItIsRight(t *testing.T) {
	key := keyOf(t, "east")
	v := newVerified("west", networkkey.Known{"east": {key.Public()}})
	east := newSpeaks(t, "east", "gw-e", "", key)
	word := east.say(exportOf(shopID))
	var proof pb.Proof
	if err := proto.Unmarshal(encodeProof(east.voice()), &proof); err != nil {
		t.Fatal(err)
	}
	ahead := time.Now().Add(networkkey.MaxLifetime + time.Hour)
	if changed, why, _ := v.introduce(&proof, ahead); changed != "" || why != Certificate {
		t.Errorf("while the clock is ahead: changed %q, %q; want nothing, and %q", changed, why, Certificate)
	}
	if s, why := v.record("east", east.key.ID(), word); s != nil || why != Uncertified {
		t.Errorf("while the clock is ahead: the export is %q; want %q", why, Uncertified)
	}
	if changed := v.expire(time.Now()); len(changed) != 1 {
		t.Errorf("when the clock is right: %v changed; want east", changed)
	}
	if s, why := v.record("east", east.key.ID(), word); s == nil || why != "" || s.body.Load() == nil {
		t.Errorf("when the clock is right: the export is %q; want it proven, and its gateway known", why)
	}
	v.expire(ahead)
	if v.expire(ahead.Add(networkkey.MaxLifetime + time.Second)); v.number("east") != 0 || v.words["east"] != 0 {
		t.Errorf("a day after it has ended: %d instances and %d records are remembered", v.number("east"), v.words["east"])
	}
}
