package ledger

import (
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// groups is a ledger that has heard west's groups blue and green, which export one service.
func groups(t *testing.T) (l *Ledger, blue, green *speaker) {
	l = newLedger(epoch)
	blue, green = newSpeaker(t, "west", "gw-blue"), newSpeaker(t, "west", "gw-green")
	offer(t, l, blue.say(record.NetworkRecord(record.Network{Gateway: "gw-blue", Group: "blue"}), export(80)), epoch)
	offer(t, l, green.say(record.NetworkRecord(record.Network{Gateway: "gw-green", Group: "green"}), export(80)), epoch)
	return l, blue, green
}

// speak lets speakers be heard every 2 s until a time, and returns what changed.
func speak(t *testing.T, l *Ledger, from, until time.Time, speakers ...*speaker) (changes []Change) {
	t.Helper()
	for now := from; now.Before(until); now = now.Add(2 * time.Second) {
		l.Draw(number, now)
		for _, s := range speakers {
			changes = append(changes, offer(t, l, s.say(), now).Changes...)
		}
		changes = append(changes, l.Advance(now)...)
	}
	return changes
}

// The last gateway of a group is taken away without a word, and then the network
// withdraws a service. What the dead one has said of it holds for minutes, not for ever.
func TestAGroupThatIsGoneIsForgottenBesideAnother(t *testing.T) {
	l, blue, green := groups(t)
	speak(t, l, epoch, epoch.Add(Absence-10*time.Second), green)
	now := epoch.Add(Absence - 10*time.Second)
	offer(t, l, green.withdraw(export(1).Key), now)
	if s, ok := l.Export("west", hello); !ok || !slices.Equal(s.Gateways, []record.Instance{blue.key.ID()}) {
		t.Errorf("%v after the last word of its only gateway: %+v, %v; want that it is exported", Absence, s, ok)
	}
	changes := speak(t, l, now, epoch.Add(Absence+10*time.Second), green)
	if _, ok := l.Export("west", hello); ok || phase(l, blue) != 255 || len(l.Words(hello)) > 0 {
		t.Errorf("it is exported by a gateway that has been gone for %v beside one that knows everything: %v", Absence, phase(l, blue))
	}
	if !slices.Contains(changes, Change{Network: "west", All: true}) {
		t.Errorf("nobody was told: %v", changes)
	}
}

// A reader that was cut off hears one group a little earlier than the other again: it
// forgets neither.
func TestWhoeverWasCutOffForgetsNobody(t *testing.T) {
	l, blue, green := groups(t)
	now := epoch.Add(time.Hour)
	l.Advance(now)
	speak(t, l, now, now.Add(Lapse), green)
	if p := phase(l, blue); p != Lapsed {
		t.Fatalf("blue is %v, want lapsed", p)
	}
	speak(t, l, now.Add(Lapse), now.Add(2*Lapse), green, blue)
	if p := phase(l, blue); p != Live {
		t.Errorf("blue is heard, and %v", p)
	}
}

// One group that does not know everything yet, or does not speak, makes nobody forgotten;
// the end of a certificate does.
func TestALapsedInstanceIsForgottenWithItsCertificate(t *testing.T) {
	l, blue, green := groups(t)
	green.synchronised = false
	speak(t, l, epoch, epoch.Add(2*Absence), green)
	end := epoch.Add(networkkey.MaxLifetime + networkkey.Tolerance)
	for _, at := range []time.Time{epoch.Add(2 * Absence), end} {
		l.Advance(at)
		if s, ok := l.Export("west", hello); !ok || phase(l, blue) != Lapsed {
			t.Errorf("after %v: blue is %v, exported %v %+v; want that its exports hold", at.Sub(epoch), phase(l, blue), ok, s)
		}
	}
	if next := l.Next(); next.After(end.Add(time.Second)) || next.IsZero() {
		t.Errorf("the next change is due at %v, want %v", next, end)
	}
	changes := l.Advance(end.Add(time.Second))
	if _, ok := l.Export("west", hello); ok || phase(l, blue) != 255 || !slices.Contains(changes, Change{Network: "west", All: true}) {
		t.Errorf("after its certificate blue is %v, exported %v; told %v", phase(l, blue), ok, changes)
	}
}
