package standing

import (
	"testing"
	"time"
	"unsafe"

	"github.com/isthmus-mesh/isthmus/health"
)

// ahead returns t as it would have been read with the wall clock ahead by d: the
// monotonic clock is as it is. The layout is that of time.Time since Go 1.9.
func ahead(t time.Time, d time.Duration) time.Time {
	*(*uint64)(unsafe.Pointer(&t)) += uint64(d/time.Second) << 30
	return t
}

func TestAnsweredSince(t *testing.T) {
	b := NewBook[string](health.DefaultConfig(), func() float64 { return 0.5 })
	now := time.Now()
	c := b.Hold("pod")
	if c.AnsweredSince(now.Add(-time.Hour)) {
		t.Error("it has answered before it ever did")
	}
	c.Answered(now)
	for _, x := range []struct {
		asked time.Time
		want  bool
	}{{now.Add(-time.Hour), true}, {now.Add(-1), true}, {now, false}, {now.Add(1), false}} {
		if got := c.AnsweredSince(x.asked); got != x.want {
			t.Errorf("asked %v after the answer: %v; want %v", x.asked.Sub(now), got, x.want)
		}
	}
}

// A clock that was an hour ahead is set back. A pod that has answered before that, and
// hangs now, must not count as having answered for an hour.
func TestAPodHasNotAnsweredSinceBecauseTheClockWasSetBack(t *testing.T) {
	now := time.Now()
	if wrong := ahead(now, time.Hour); wrong.Sub(now) != 0 || wrong.Round(0).Sub(now.Round(0)) != time.Hour {
		t.Fatalf("no time an hour ahead: %v of %v", wrong, now)
	}
	b := NewBook[string](health.DefaultConfig(), func() float64 { return 0.5 })
	c := b.Hold("pod")
	c.Answered(ahead(now, time.Hour))
	if c.AnsweredSince(now.Add(time.Millisecond)) {
		t.Error("the pod counts as having answered after a question that was put after its answer")
	}
}
