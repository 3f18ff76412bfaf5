package standing

import (
	"strings"
	"testing"
	"time"
)

func TestWhatAWitnessHasSeenSaysWhenItIsAskedAgain(t *testing.T) {
	for _, c := range []struct{ by, reason, want string }{
		{Witness + "west-1", "refused", "refused, seen by its node west-1; asked again twice a second"},
		{Witness + "west-1", "flapping", "at most a minute"},
		{Witness + "west-1", "timeout", "timeout, seen by its node west-1"},
		{"gateway gw-1 of west", "refused", "refused, seen by gateway gw-1 of west"},
	} {
		if got := (Cause{Word: HeldReported, Reason: c.reason, By: c.by}).Sentence(time.Now()); !strings.HasSuffix(got, c.want) {
			t.Errorf("%s by %s: %q, want it to end in %q", c.reason, c.by, got, c.want)
		}
	}
}
