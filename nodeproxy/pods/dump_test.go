package pods

import (
	"slices"
	"testing"
	"time"
)

// busy is a Server that has a problem.
type busy struct{ idle }

func (busy) Problems(time.Time) []string { return []string{"had connections refused"} }

// What goes wrong with the connections of a pod is a problem with its name, beside those that are not captured.
func TestProblemsOfServersNameThePod(t *testing.T) {
	c := Fake(Options{}, alone(), map[string]FakePod{"uid-1": {}, "uid-2": {}, "uid-3": {Lacks: "odd"}})
	c.held["uid-2"].server = busy{}
	got := c.Problems(func(uid string) string { return "demo/" + uid })
	if want := []string{"pod demo/uid-2 had connections refused", "pod demo/uid-3 is not captured: odd"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
