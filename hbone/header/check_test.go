package header

import "testing"

func TestSentIsReadAsWritten(t *testing.T) {
	want := Sent{Segments: 600, Lost: 12, MaxSegment: 1460}
	if got, ok := ParseSent(want.String()); !ok || got != want {
		t.Errorf("%+v, %v, want %+v", got, ok, want)
	}
	for _, v := range []string{"", "1", "1 2 3", "-1 0 1460", "9 1 -5", "9 1 70000", "a b c", "99999999999999999999999 1 1"} {
		if got, ok := ParseSent(v); ok {
			t.Errorf("%q is read as %+v", v, got)
		}
	}
}

// What a peer sends either is rejected, or has numbers that can be.
func FuzzParseSent(f *testing.F) {
	for _, seed := range []string{"600 12 1460", "0 0 0", "1 2 3", "1 1 65537", "+1 1 1", "1 1 1 1", " 1 1 1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, v string) {
		s, ok := ParseSent(v)
		if !ok {
			if s != (Sent{}) {
				t.Errorf("%q is rejected, and read as %+v", v, s)
			}
			return
		}
		if s.Lost > s.Segments || s.MaxSegment < 0 || s.MaxSegment > 1<<16 {
			t.Errorf("%q is read as %+v", v, s)
		}
		if again, ok := ParseSent(s.String()); !ok || again != s {
			t.Errorf("%q is read as %+v, and that as %+v", v, s, again)
		}
	})
}
