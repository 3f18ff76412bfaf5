package main

import (
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/answer"
)

// Whether an old key may be forgotten is read off whom it certifies: a process that has
// ended does not count, one that is silent may come back and is said to be.
func TestAKeyCertifiesWhomIsHeard(t *testing.T) {
	heard := func(gateway, phase, key string) answer.Heard {
		return answer.Heard{Network: "west", Gateway: gateway, Phase: phase, Key: key}
	}
	for want, all := range map[string][]answer.Heard{
		"nobody who is heard":               {heard("gw-1", "pending", "old"), heard("gw-2", "ignored", "old"), heard("gw-1", "live", "new")},
		"certifies gw-1":                    {heard("gw-1", "lapsed", "old"), heard("gw-1", "live", "old"), heard("gw-1", "silent", "old")},
		"certifies gw-1 silent, gw-2, gw-3": {heard("gw-3", "live", "old"), heard("gw-2", "live", "old"), heard("gw-1", "silent", "old"), heard("gw-2", "pending", "old")},
		"certifies gw-1 lapsed":             {heard("gw-1", "lapsed", "old"), heard("gw-1", "live", "new")},
	} {
		if got := certifies(&answer.Status{Heard: all}, "west", "old"); got != want {
			t.Errorf("%v: %q, want %q", all, got, want)
		}
	}
}
