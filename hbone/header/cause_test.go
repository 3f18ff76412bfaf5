package header

import (
	"strings"
	"testing"
)

func TestCauseIsCutAtAWord(t *testing.T) {
	long := "dial 10.0.0.1:15008 over " + strings.Repeat("gateway ", 40) + "spiffe://cluster.local/ns/default: refused"
	got := Cause(long)
	if rest, cut := strings.CutPrefix(got, "..."); !cut || !strings.HasSuffix(long, " "+rest) || len(got) > maxCause || len(got) < maxCause-20 {
		t.Errorf("Cause(%q) = %q, want its last words", long, got)
	}
	if got := Error(long); got != long {
		t.Errorf("Error(%q) = %q, want all of it", long, got)
	}
	if word := strings.Repeat("x", 300); len(Cause(word)) != maxCause {
		t.Errorf("a single long word is %q", Cause(word))
	}
}
