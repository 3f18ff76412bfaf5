package healthstream

import (
	"testing"
	"testing/synctest"
	"time"
)

// A gateway that has lost its stream, and hears nothing new, says again what it said: that
// is no newer than what its sibling has said meanwhile. It is if its numbers are.
func TestAStreamThatIsAttachedAgainMakesNoOldWordNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for what, x := range map[string]struct {
			says []port // the stream that is attached again; the other one says {80, 3, 6}
			want int
		}{
			"an older word":             {[]port{{80, 2, 9}}, 6},
			"the same":                  {[]port{{80, 3, 6}}, 6},
			"a port that was withdrawn": {[]port{{80, 3, 6}, {81, 1, 9}}, 6},
			"a newer word":              {[]port{{80, 4, 5}}, 5},
		} {
			w := newWords(t)
			one, two := w.gateway("gw-1"), w.gateway("gw-2")
			w.tell(one, "east", true, port{80, 1, 10})
			w.tell(two, "east", true, port{80, 3, 6})
			time.Sleep(time.Minute)
			w.detach(one)
			one = w.gateway("gw-1")
			time.Sleep(time.Minute)
			w.tell(one, "east", true, x.says...)
			if got := w.healthy("east", 80); got != x.want {
				t.Errorf("%s: %d are healthy; want %d", what, got, x.want)
			}
			if got := w.healthy("east", 81); got != -1 {
				t.Errorf("%s: %d are healthy on a port that is withdrawn", what, got)
			}
			time.Sleep(time.Minute)
			w.tell(one, "east", true, port{80, 5, 4}, port{82, 6, 3})
			if got, more := w.healthy("east", 80), w.healthy("east", 82); got != 4 || more != 3 {
				t.Errorf("%s, and then it has news: %d and %d are healthy; want 4 and 3", what, got, more)
			}
		}
	})
}
