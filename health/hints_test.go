package health

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

var (
	web   = HintService{"west", "web.shop.mesh.internal", 80}
	admin = HintService{"west", "web.shop.mesh.internal", 81}
)

func TestHintsAvoidOwnFirstThenReported(t *testing.T) {
	h := NewHints(0)
	h.Failed(HintKey{web, 5, ""}, t0)
	h.Failed(HintKey{web, 9, ""}, t0.Add(time.Second))
	h.Failed(HintKey{admin, 1, ""}, t0)
	now := t0.Add(2 * time.Second)
	got := h.Avoid(web, "gw", []mesh.EndpointID{8, 7, 5, 6}, 4, now)
	if want := []mesh.EndpointID{9, 5, 6, 7}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v: the newest own one first, then half of 4 by report", got, want)
	}
	if got := h.Avoid(HintService{"north", web.Service, 80}, "gw", nil, 4, now); got != nil {
		t.Errorf("another network's share avoids %v, want nothing", got)
	}
}

func TestHintsExpire(t *testing.T) {
	h := NewHints(0)
	h.Failed(HintKey{web, 5, ""}, t0)
	for after, want := range map[time.Duration]int{0: 1, DefaultHintTTL - 1: 1, DefaultHintTTL: 0} {
		if got := h.Avoid(web, "gw", nil, 4, t0.Add(after)); len(got) != want {
			t.Errorf("after %v: %v, want %d", after, got, want)
		}
	}
}

func TestHintsYieldToNewerFactsOfTheOwner(t *testing.T) {
	cases := []struct {
		name string
		fact time.Duration // after the failure
		want bool
	}{
		{"older", -time.Second, false}, {"same instant", 0, false}, {"newer", time.Millisecond, true},
		{"from the future, but the failure is older than now", time.Hour, true},
	}
	for _, c := range cases {
		h := NewHints(0)
		h.Failed(HintKey{web, 5, ""}, t0)
		if got := h.Cleared(HintKey{web, 5, ""}, t0.Add(c.fact), t0.Add(time.Second)); got != c.want || (h.Len() == 0) != c.want {
			t.Errorf("%s: cleared %t with %d left, want %t", c.name, got, h.Len(), c.want)
		}
	}
	h := NewHints(0)
	h.Failed(HintKey{web, 5, ""}, t0)
	if h.Cleared(HintKey{web, 5, ""}, t0.Add(time.Hour), t0) {
		t.Error("a fact from the future cleared a failure seen just now")
	}
	if h.Cleared(HintKey{web, 6, ""}, t0.Add(time.Hour), t0) || h.Cleared(HintKey{admin, 5, ""}, t0.Add(time.Hour), t0) {
		t.Error("cleared what was never noted")
	}
}

func TestHintsIgnoreTheUnnamed(t *testing.T) {
	h := NewHints(0)
	h.Failed(HintKey{web, 0, ""}, t0)
	if h.Len() != 0 {
		t.Error("noted a failure of the unknown endpoint")
	}
}

func TestHintsAreBounded(t *testing.T) {
	h := NewHints(time.Hour)
	for i := range 3 * MaxHints {
		s := HintService{"west", web.Service, uint16(i % 50)}
		h.Failed(HintKey{s, mesh.EndpointID(i + 1), ""}, t0.Add(time.Duration(i)))
	}
	if h.Len() != MaxHints {
		t.Fatalf("%d hints, want %d", h.Len(), MaxHints)
	}
	for p := range uint16(50) {
		for _, k := range h.Known(HintService{"west", web.Service, p}) {
			if id := k.Endpoint; id <= 2*MaxHints {
				t.Fatalf("hint %d is older than the newest %d", id, MaxHints)
			}
		}
	}
	if got := h.Avoid(HintService{"west", web.Service, 7}, "gw", nil, 0, t0.Add(time.Minute)); len(got) != MaxAvoid {
		t.Errorf("avoid lists %d endpoints, want %d", len(got), MaxAvoid)
	}
}

// A list of every failure in order, searched from the end, must agree.
func TestHintsAgreeWithAList(t *testing.T) {
	type noted struct {
		k  HintKey
		at time.Time
	}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 4))
		h := NewHints(10 * time.Second)
		h.limit = 6
		var list []noted // oldest first
		drop := func(k HintKey) {
			list = slices.DeleteFunc(list, func(n noted) bool { return n.k == k })
		}
		now := t0
		for step := range 200 {
			now = now.Add(time.Duration(rng.IntN(1500)) * time.Millisecond)
			s := []HintService{web, admin}[rng.IntN(2)]
			k := HintKey{s, mesh.EndpointID(1 + rng.IntN(6)), []string{"", "gw", "gw-2"}[rng.IntN(3)]}
			if rng.IntN(3) > 0 {
				h.Failed(k, now)
				drop(k)
				if len(list) >= 6 {
					list = list[1:]
				}
				list = append(list, noted{k, now})
			} else {
				fact := now.Add(-time.Duration(rng.IntN(5000)) * time.Millisecond)
				h.Cleared(k, fact, now)
				list = slices.DeleteFunc(list, func(n noted) bool { return n.k == k && n.at.Before(fact) })
			}
			var want []mesh.EndpointID
			for _, n := range slices.Backward(list) {
				if n.k.HintService == s && n.k.Gateway != "gw-2" && now.Sub(n.at) < 10*time.Second && !slices.Contains(want, n.k.Endpoint) {
					want = append(want, n.k.Endpoint)
				}
			}
			if got := h.Avoid(s, "gw", nil, 9, now); !slices.Equal(got, want) || h.Len() != len(list) {
				t.Fatalf("seed %d, step %d: got %v of %d, want %v of %d", seed, step, got, h.Len(), want, len(list))
			}
		}
	}
}

func TestAFailureIsUnexplainedUntilItsOwnerNamesIt(t *testing.T) {
	h := NewHints(10 * time.Second)
	nobody := func(HintKey) bool { return false }
	s := HintService{Network: "west", Service: "a", Port: 80}
	now := time.Unix(1000, 0)
	if h.Unexplained(s, "gw", nobody, time.Minute, now) {
		t.Error("unexplained, and nothing has failed")
	}
	h.Failed(HintKey{s, 7, ""}, now)
	for _, c := range []struct {
		reported []mesh.EndpointID
		after    time.Duration
		want     bool
	}{{nil, 0, true}, {nil, 59 * time.Second, true}, {nil, time.Minute, false}, {[]mesh.EndpointID{7}, 0, false}, {[]mesh.EndpointID{8}, 0, true}} {
		if got := h.Unexplained(s, "gw", func(k HintKey) bool { return slices.Contains(c.reported, k.Endpoint) }, time.Minute, now.Add(c.after)); got != c.want {
			t.Errorf("reported %v after %v: %v, want %v", c.reported, c.after, got, c.want)
		}
	}
	h.Cleared(HintKey{s, 7, ""}, now.Add(time.Second), now.Add(time.Second))
	if h.Unexplained(s, "gw", nobody, time.Minute, now.Add(time.Second)) {
		t.Error("unexplained after a newer word of the owner")
	}
	h.Failed(HintKey{s, 7, "gw"}, now)
	if !h.Unexplained(s, "gw", nobody, time.Minute, now) || h.Unexplained(s, "gw-2", nobody, time.Minute, now) {
		t.Error("what one gateway could not reach is a matter of that gateway alone")
	}
	if h.Forget(HintKey{s, 7, "gw"}); h.Len() != 0 {
		t.Error("Forget forgets nothing")
	}
}

// What is silent is avoided as what failed is, but leaves nobody else in doubt, and is forgotten when it is heard.
func TestASilentEndpointIsAvoidedAndDoubtsNobody(t *testing.T) {
	nobody := func(HintKey) bool { return false }
	h, k := NewHints(10*time.Second), HintKey{HintService{"west", "web", 80}, 7, ""}
	avoided := func(now time.Time) bool { return slices.Contains(h.Avoid(k.HintService, "gw", nil, 10, now), 7) }
	doubt := func(now time.Time) bool { return h.Unexplained(k.HintService, "gw", nobody, time.Minute, now) }
	h.Silent(k, t0)
	if !avoided(t0) || doubt(t0) {
		t.Errorf("silent: avoided %v, others in doubt %v; want true, false", avoided(t0), doubt(t0))
	}
	if h.Heard(k.HintService, 8, "gw"); !avoided(t0) {
		t.Error("another one was heard, and it is no longer avoided")
	}
	if h.Heard(k.HintService, 7, "gw"); avoided(t0) || h.Len() != 0 {
		t.Error("it was heard, and is avoided still")
	}
	by := HintKey{k.HintService, 7, "gw"}
	h.Failed(by, t0)
	if h.Heard(k.HintService, 7, "other"); !avoided(t0) {
		t.Error("another gateway has a way to it, and so has the one that had none")
	}
	if h.Heard(k.HintService, 7, "gw"); avoided(t0) || h.Len() != 0 {
		t.Error("the gateway that had no way to it reached it, and is asked to avoid it still")
	}
	h.Failed(k, t0)
	h.Silent(k, t0.Add(time.Second))
	if h.Heard(k.HintService, 7, "gw"); !avoided(t0.Add(2*time.Second)) || !doubt(t0.Add(2*time.Second)) {
		t.Error("what failed was forgotten since it was silent as well, and heard")
	}
	h.Silent(k, t0.Add(11*time.Second)) // the failure is over by then
	if at := t0.Add(12 * time.Second); !avoided(at) || doubt(at) || h.Len() != 1 {
		t.Errorf("silent after the failure was over: avoided %v, in doubt %v, %d kept; want true, false, 1", avoided(at), doubt(at), h.Len())
	}
}
