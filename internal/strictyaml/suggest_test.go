package strictyaml

import (
	"strconv"
	"testing"
)

func TestSuggestNamesTheNearestWordOrAFew(t *testing.T) {
	var many []string
	for i := range 13 {
		many = append(many, "n"+strconv.Itoa(i))
	}
	for _, c := range []struct {
		word  string
		known []string
		want  string
	}{
		{"wset", []string{"east", "west"}, `did you mean "west"?`},
		{"WEST", []string{"east", "west"}, `did you mean "west"?`},
		{"something", []string{"east", "west"}, "known are east, west"},
		{"x", nil, "there is none"},
		{"elsewhere", many, "known are n0, n1, n2, n3, n4, n5, n6, n7, n8, n9 and 3 more"},
	} {
		if got := Suggest(c.word, c.known); got != c.want {
			t.Errorf("Suggest(%q) = %q, want %q", c.word, got, c.want)
		}
	}
}
