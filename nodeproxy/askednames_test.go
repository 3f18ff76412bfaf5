package nodeproxy

import (
	"fmt"
	"testing"
	"time"
)

// Pods that ask for names that there are not keep no other pod from learning one, and
// the places are no more than they are.
func TestNamesThatNobodyOffersKeepNoOtherFromBeingAsked(t *testing.T) {
	for _, crawlers := range []int{1, 3} {
		var a askedNames
		now := time.Now()
		refused := 0
		for tick := range 1000 { // 10 s; 200 names a second of each crawler, one of its neighbours every 50 ms
			for i := range 2 * crawlers {
				a.begin(fmt.Sprintf("none-%d-%d.default.svc.cluster.local", tick, i), accountIn("default", fmt.Sprint("crawler-", i/2)), now)
			}
			if tick%5 == 0 {
				if asked, _ := a.begin(fmt.Sprintf("new-%d.default.svc.cluster.local", tick), accountIn("default", "shop"), now); !asked {
					refused++
				}
			}
			now = now.Add(10 * time.Millisecond)
		}
		if refused > 0 || len(a.names) > maxAsked {
			t.Errorf("beside %d crawlers: %d of 200 names of another pod were not asked for, and %d are asked for at once; want none and at most %d", crawlers, refused, len(a.names), maxAsked)
		}
		left := 0
		for _, n := range a.names {
			if n.by == accountIn("default", "shop") {
				left++
			}
		}
		if left != int(askedFor/(50*time.Millisecond)) {
			t.Errorf("beside %d crawlers: %d names of another pod are asked for; want those of the last %v", crawlers, left, askedFor)
		}
	}
}

// A place is left to whoever has it unless the other one has at least two fewer: else
// pods would take it from each other again and again.
func TestPodsWithAsManyNamesTakeNoPlacesFromEachOther(t *testing.T) {
	var a askedNames
	now := time.Now()
	for i := range 10 * maxAsked {
		asked, expired := a.begin(fmt.Sprintf("none-%d.default.svc.cluster.local", i), accountIn("default", fmt.Sprint("crawler-", i%3)), now)
		if asked != (i < maxAsked) || len(expired) > 0 {
			t.Fatalf("name %d: asked %v, %d gave way", i, asked, len(expired))
		}
	}
}
