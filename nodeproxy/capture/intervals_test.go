//go:build linux

package capture

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// What the kernel is given holds exactly the addresses that the prefixes hold, in order, with
// a gap between any two.
func TestIntervalsHoldWhatThePrefixesHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		address := rapid.Custom(func(t *rapid.T) netip.Addr {
			b := []byte{240, 0, 0, rapid.ByteRange(0, 31).Draw(t, "low")}
			if rapid.Bool().Draw(t, "top") {
				b = []byte{255, 255, 255, 255 - b[3]}
			}
			if rapid.Bool().Draw(t, "six") {
				b = append(make([]byte, 12), b...)
				b[0] = b[12]
			}
			a, _ := netip.AddrFromSlice(b)
			return a
		})
		var r Rules
		for _, a := range rapid.SliceOfN(address, 0, 4).Draw(t, "ranges") {
			r.Ranges = append(r.Ranges, netip.PrefixFrom(a, a.BitLen()-rapid.IntRange(0, 5).Draw(t, "host bits")))
		}
		r.Addresses = rapid.SliceOfN(address, 0, 4).Draw(t, "addresses")
		four, six := intervals(r)
		for _, list := range [][]span{four, six} {
			for i, s := range list {
				if s.end.IsValid() && !s.first.Less(s.end) || i > 0 && (!list[i-1].end.IsValid() || !list[i-1].end.Less(s.first)) {
					t.Fatalf("%v: %v", r, list)
				}
			}
		}
		for _, a := range rapid.SliceOfN(address, 20, 20).Draw(t, "asked") {
			want := false
			for _, p := range r.Ranges {
				want = want || p.Contains(a)
			}
			for _, b := range r.Addresses {
				want = want || a == b
			}
			got, list := false, four
			if a.Is6() {
				list = six
			}
			for _, s := range list {
				got = got || !a.Less(s.first) && (!s.end.IsValid() || a.Less(s.end))
			}
			if got != want {
				t.Fatalf("%v holds %v: %v, want %v (%v)", r, a, got, want, list)
			}
		}
	})
}
