package scenario

import "testing"

func TestBoundsHoldAsWritten(t *testing.T) {
	for text, want := range map[string][3]bool{ // for 1, 2, 3
		"== 2": {false, true, false}, "!= 2": {true, false, true}, "< 2": {true, false, false},
		"<= 2": {true, true, false}, "> 2": {false, false, true}, ">=2": {false, true, true},
	} {
		b, err := ParseBound(text)
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range want {
			if got := b.Holds(float64(i + 1)); got != w {
				t.Errorf("%d %s: got %v, want %v", i+1, text, got, w)
			}
		}
	}
}
