package damping

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/isthmus-mesh/isthmus/mesh"
)

var epoch = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// run drives one endpoint: down says whether it fails at a time. It is seen
// every 100 ms while it is in, and probed every 500 ms while it is out. It
// returns how long it was out, how much of that it was down, and the edges.
func run(d *Damper[Key], down func(time.Duration) bool, long time.Duration) (out, sick time.Duration, edges int) {
	const step, probe = 100 * time.Millisecond, 500 * time.Millisecond
	k := Key{1, 80}
	ejected := false
	for t := time.Duration(0); t < long; t += step {
		now := epoch.Add(t)
		bad := down(t)
		switch {
		case !ejected && bad:
			d.Ejected(k, now)
			ejected, edges = true, edges+1
		case ejected && bad && t%probe == 0:
			d.Failed(k, now)
		case ejected && t%probe == 0:
			if !d.Answered(k, now).After(now) {
				d.Readmitted(k, now)
				ejected, edges = false, edges+1
			}
		}
		d.Expire(now)
		if ejected {
			out += step
		}
		if bad {
			sick += step
		}
	}
	return out, sick, edges
}

func TestAFirstFaultIsNotDamped(t *testing.T) {
	d := New[Key](10)
	d.Ejected(Key{1, 80}, epoch)
	if got := d.Answered(Key{1, 80}, epoch.Add(time.Second)); !got.Equal(epoch.Add(time.Second)) {
		t.Errorf("held back until %v", got.Sub(epoch))
	}
	if got := d.Answered(Key{2, 80}, epoch); !got.Equal(epoch) {
		t.Error("one that was never ejected is held back")
	}
}

func TestPenaltiesGrowToAMinute(t *testing.T) {
	want := []time.Duration{0, 0, 1, 2, 4, 8, 16, 32, 60, 60}
	for n, w := range want {
		if got := Penalty(n); got != w*time.Second {
			t.Errorf("ejection %d: %v, want %v", n, got, w*time.Second)
		}
	}
	if Penalty(maxLevel) != MaxPenalty || Penalty(1<<40) != MaxPenalty {
		t.Error("the longest penalty is not reached, or exceeded")
	}
}

// One blip of 0.1 s every 30 s hardly keeps a sound pod out; flapping once a
// second becomes a few edges a minute.
func TestBlipsAreForgivenAndFlapsAreDamped(t *testing.T) {
	const long = 20 * time.Minute
	out, _, _ := run(New[Key](10), func(t time.Duration) bool { return t%(30*time.Second) < 100*time.Millisecond }, long)
	blip := float64(out) / float64(long)
	_, _, edges := run(New[Key](10), func(t time.Duration) bool { return t%time.Second < 500*time.Millisecond }, long)
	flap := float64(edges) / long.Minutes()
	t.Logf("blip of 0.1 s every 30 s: out %.1f %% of the time; flap of 1 Hz: %.1f edges a minute", 100*blip, flap)
	if blip > 0.02 {
		t.Errorf("a sound pod is out %.1f %% of the time", 100*blip)
	}
	if flap > 4 {
		t.Errorf("%.1f edges a minute", flap)
	}
}

func TestAQuietSpellForgetsOneEjection(t *testing.T) {
	d := New[Key](10)
	k := Key{1, 80}
	now := epoch
	for range 4 {
		d.Ejected(k, now)
		d.Readmitted(k, now)
	}
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{9 * time.Second, 4}, {10 * time.Second, 3}, {20 * time.Second, 2}, {40 * time.Second, 0}} {
		if got := d.Level(k, epoch.Add(c.after)); got != c.want {
			t.Errorf("after %v: level %d, want %d", c.after, got, c.want)
		}
	}
	d.Expire(epoch.Add(40 * time.Second))
	if d.Len() != 0 {
		t.Error("what is forgotten still costs memory")
	}
	d.Ejected(k, epoch)
	if d.Expire(epoch.Add(time.Hour)); d.Len() != 1 {
		t.Error("time in which it is out is no quiet spell")
	}
}

func TestAtMostHalfAShareIsHeldBackAndOnlyBesideTheWell(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var members []Member
		var total, sum uint64
		capacity := map[Key]uint32{}
		for n := range rapid.IntRange(1, 12).Draw(t, "members") {
			m := Member{Key{mesh.EndpointID(n + 1), 80}, rapid.Uint32Range(1, 5).Draw(t, "capacity")}
			total += uint64(m.Capacity)
			capacity[m.Key] = m.Capacity
			if rapid.Bool().Draw(t, "held") {
				members = append(members, m)
			}
		}
		again := slices.Clone(members)
		slices.Reverse(again)
		well := rapid.Bool().Draw(t, "well")
		out := Held(members, total, well)
		for _, k := range out {
			sum += uint64(capacity[k])
		}
		switch {
		case 2*sum > total:
			t.Fatalf("%d of %d held back", sum, total)
		case !well && len(out) > 0:
			t.Fatalf("%v are held back, and nobody else is well", out)
		case well && slices.ContainsFunc(members, func(m Member) bool { return !slices.Contains(out, m.Key) && 2*(sum+uint64(m.Capacity)) <= total }):
			t.Fatalf("%d of %d held back, and one more might be", sum, total)
		case !slices.Equal(out, Held(again, total, well)):
			t.Fatal("it depends on the order")
		}
	})
}

// One that is too large for half of the share does not keep smaller ones from being
// held back.
func TestWhoeverFitsIsHeldBackBesideOneThatDoesNot(t *testing.T) {
	members := []Member{{Key{1, 80}, 2}, {Key{2, 80}, 50}, {Key{3, 80}, 3}, {Key{4, 80}, 1}}
	if got, want := Held(members, 10, true), []Key{{1, 80}, {3, 80}}; !slices.Equal(got, want) {
		t.Errorf("of a share of 10 %v are held back, want %v", got, want)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	d := New[Key](3)
	for n := range 10 {
		d.Ejected(Key{mesh.EndpointID(n + 1), 80}, epoch)
	}
	if d.Len() != 3 {
		t.Errorf("remembers %d, want 3", d.Len())
	}
	if got := d.Answered(Key{9, 80}, epoch); !got.Equal(epoch) {
		t.Error("one that is not remembered is held back")
	}
	d.Forget(Key{1, 80})
	if d.Len() != 2 {
		t.Error("Forget forgets nothing")
	}
	if d.Retain(func(k Key) bool { return k.Endpoint == 2 }); d.Len() != 1 {
		t.Error("Retain keeps what is refused")
	}
}
