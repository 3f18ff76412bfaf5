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
