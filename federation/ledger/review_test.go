package ledger

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

// Phases are looked at when something was heard, of its network, and when time has come,
// of all. Whatever is said and however long nobody asks, they are those that looking at
// every instance each time finds, and Next comes before any of them changes by itself.
func TestPhasesAreAsIfEachWereLookedAtEachTime(t *testing.T) {
	seen, forgotten := map[[2]Phase]int{}, 0
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		l, now := New(known(), DefaultLimits), epoch
		own := newSpeaker(t, "west", "gw-own")
		var others []*speaker
		for n := range 10 {
			others = append(others, newProcess(t, []string{"west", "east"}[n%2], fmt.Sprintf("gw-%d", n%4), n+1))
		}
		told := map[record.Instance]Phase{}
		for step := range 300 {
			var changes []Change
			switch p := others[rng.IntN(len(others))]; rng.IntN(12) {
			case 0:
				l.Draw(number, now)
			case 1:
				own.synchronised = rng.IntN(2) == 0
				o, err := l.OfferOwn(own.say(), own.set, nil, now)
				if err != nil {
					t.Fatal(err)
				}
				changes = o.Changes
			case 2:
				changes = offer(t, l, p.say(record.NetworkRecord(record.Network{Gateway: "gw", Group: []string{"", "a", "b"}[rng.IntN(3)]})), now).Changes
			case 3:
				p.synchronised = rng.IntN(2) == 0
				p.answers = [][]uint64{nil, {number}}[rng.IntN(2)]
			case 4:
				p.say(health(10, uint32(step)%11)) // lost, so that not all is held from now on
			case 5:
				if changes = offer(t, l, p.say(), now).Changes; l.instances[p.key.ID()] != nil {
					o, err := l.OfferChunk(chunkOf(p), now)
					if err != nil {
						t.Fatal(err)
					}
					changes = append(changes, o.Changes...)
				}
			default:
				changes = offer(t, l, p.say(), now).Changes
			}
			now = now.Add(time.Duration(rng.Int64N(int64([]time.Duration{time.Second, 4 * time.Second, 40 * time.Second}[rng.IntN(3)]))))
			if next := l.Next(); !next.IsZero() && next.After(now) && next.Sub(now) < time.Hour && rng.IntN(2) == 0 {
				now = next.Add(-1)
				l.settle(now)
				for _, i := range l.order {
					if got := l.phaseOf(i, now); got != i.phase {
						t.Fatalf("seed %d, step %d: %v becomes %v before Next", seed, step, i.phase, got)
					}
					if l.outlived(i, now) {
						t.Fatalf("seed %d, step %d: one is to be forgotten before Next", seed, step)
					}
				}
			}
			changes = append(changes, l.Advance(now)...)
			for _, i := range l.order {
				want := l.phaseOf(i, now)
				if i.phase != want {
					t.Fatalf("seed %d, step %d: %v, looked at it is %v", seed, step, i.phase, want)
				}
				if !i.own && now.Sub(i.heard) > Lapse && (want == Ignored || want == Pending) {
					t.Fatalf("seed %d, step %d: one that is %v is kept", seed, step, want)
				}
				if l.outlived(i, now) {
					t.Fatalf("seed %d, step %d: one that is not to come back is kept", seed, step)
				}
				if old := told[i.id]; old != want && !slices.Contains(changes, Change{Network: i.certificate.Network, All: true}) {
					t.Fatalf("seed %d, step %d: %v became %v, and nobody was told", seed, step, old, want)
				}
				seen[[2]Phase{told[i.id], want}]++
				told[i.id] = want
			}
			for id := range told {
				if l.instances[id] == nil {
					if told[id] == Lapsed {
						forgotten++
						if !slices.ContainsFunc(changes, func(c Change) bool { return c.All }) {
							t.Fatalf("seed %d, step %d: one that had lapsed is forgotten, and nobody was told", seed, step)
						}
					}
					delete(told, id)
				}
			}
		}
	}
	for _, way := range [][2]Phase{{Pending, Live}, {Live, Silent}, {Live, Ignored}, {Silent, Ignored}, {Silent, Lapsed}, {Ignored, Live}, {Silent, Live}, {Lapsed, Live}} {
		if seen[way] == 0 {
			t.Errorf("from %v to %v nobody went: the test shows nothing of it", way[0], way[1])
		}
	}
	if forgotten == 0 {
		t.Error("no one that had lapsed was forgotten")
	}
}
