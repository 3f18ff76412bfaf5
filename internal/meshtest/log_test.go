package meshtest

import "testing"

func TestLinesWithAKeyTwiceAreNoticed(t *testing.T) {
	for line, want := range map[string]bool{
		`{"instance":"gw-1","node":"n","instance":"c2f1"}`:   true,
		`{"instance":"gw-1","tried":[{"a":1,"a":2}],"b":{}}`: false,
		`{"instance":"gw-1","node_instance":"c2f1"}`:         false,
		"no JSON": false,
	} {
		if got := repeats([]byte(line + "\n")); got != want {
			t.Errorf("%s: %v, want %v", line, got, want)
		}
	}
}
