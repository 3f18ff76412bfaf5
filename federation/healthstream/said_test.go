package healthstream

import (
	"testing"
	"testing/synctest"
	"time"
)

// saidOf is since when east's instance has said what is known of port.
func (w words) saidOf(port uint16) time.Time {
	w.t.Helper()
	k, _ := w.get("east", service)
	if len(k.Deliveries) != 1 {
		w.t.Fatalf("%d instances of east are known; want 1", len(k.Deliveries))
	}
	return k.Deliveries[0].Said(port)
}

// By the date of what a gateway says of a port a node proxy takes a way back that it has
// seen fail itself. It is not moved by streams that begin and end, by news of another
// port, or by the word of a gateway that is behind; and by what the instance says anew it is.
func TestOnlyWhatAnInstanceSaysAnewIsNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWords(t)
		one, two := w.gateway("gw-1"), w.gateway("gw-2")
		w.tell(one, "east", true, port{80, 2, 5}, port{81, 2, 5})
		first := w.saidOf(80)
		if !first.Equal(time.Now()) {
			t.Errorf("said since %v; want now, %v", first, time.Now())
		}
		for _, x := range []struct {
			what string
			do   func()
		}{
			{"another stream brings the same", func() { w.tell(two, "east", true, port{80, 2, 5}, port{81, 2, 5}) }},
			{"another stream ends", func() { w.detach(one) }},
			{"the instance falls silent", func() { w.tell(two, "east", false, port{80, 2, 5}, port{81, 2, 5}) }},
			{"it is back", func() { w.tell(two, "east", true, port{80, 2, 5}, port{81, 2, 5}) }},
			{"it says it again", func() { w.tell(two, "east", true, port{80, 3, 5}, port{81, 2, 5}) }},
			{"news of another port", func() { w.tell(two, "east", true, port{80, 3, 5}, port{81, 4, 9}) }},
			{"a gateway that is behind speaks alone", func() {
				w.attach(one)
				w.tell(one, "east", true, port{80, 1, 7}, port{81, 4, 9})
				w.detach(two)
			}},
		} {
			time.Sleep(time.Minute)
			x.do()
			if got := w.saidOf(80); !got.Equal(first) {
				t.Errorf("%s: said since %v later; want no news", x.what, got.Sub(first))
			}
		}
		time.Sleep(time.Minute)
		w.tell(one, "east", true, port{80, 5, 9}, port{81, 4, 9})
		if got := w.saidOf(80); !got.Equal(time.Now()) {
			t.Errorf("more are healthy: said since %v; want now, %v", got, time.Now())
		}
	})
}
