//go:build linux

package wan

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/wan"
)

func TestLossAndJitterOnlySlowDown(t *testing.T) {
	need(t)
	notShort(t)
	here.forget(t, double.host)
	begin := time.Now()
	good := here.many(double, 100, 16, 16<<10)
	poor := line
	poor.Jitter, poor.Loss = 20*time.Millisecond, 0.01
	here.link.Set(poor)
	before := here.link.There.Counters().Lost + here.link.Back.Counters().Lost
	bad := here.many(double, 400, 16, 16<<10)
	lost := here.link.There.Counters().Lost + here.link.Back.Counters().Lost - before
	for _, err := range append(good.errs(begin), bad.errs(begin)...) {
		t.Error(err)
	}
	t.Logf("on the good line %v", good)
	t.Logf("on the poor line %v; %d frames were lost", bad, lost)
	if lost < 10 {
		t.Errorf("only %d frames were lost: the line was not poor", lost)
	}
}

// Connections go on arriving while the line is cut, every 20 ms.
const every = 20 * time.Millisecond

// cutLine cuts the line for a while and returns what became of connections that
// begin from one second before until one second after.
func cutLine(t *testing.T, p path, during time.Duration) (c crowd, begin time.Time) {
	t.Helper()
	here.forget(t, p.host)
	for _, err := range here.many(p, 60, 8, 0).errs(time.Now()) {
		t.Fatal("before the cut:", err)
	}
	done := make(chan crowd)
	go func() { done <- here.steady(p, every, during+2*time.Second) }()
	time.Sleep(time.Second)
	begin = time.Now()
	here.link.Set(wan.Conditions{Cut: true})
	time.Sleep(during)
	here.link.Set(line)
	c = <-done
	for from := -time.Second; from < during+time.Second; from += time.Second {
		t.Logf("%3.0f s: %v", from.Seconds(), c.begunBetween(begin, from, from+time.Second))
	}
	return c, begin
}

// worksAgain fails the test if the path does not work as ever after a cut.
func worksAgain(t *testing.T, p path) {
	t.Helper()
	waitFor(t, "a pod behind the line answers after the cut", func() error {
		_, err := here.ask(double, 0)
		return err
	})
	begin := time.Now()
	after := here.many(p, 60, 8, 0)
	t.Logf("after the cut: %v", after)
	for _, err := range after.errs(begin) {
		t.Error("after the cut:", err)
	}
}

var both = path{"double both", "client-ours", "shop", "both"}

// TCP repeats what was lost at growing intervals: after a cut it may go on for as
// long again. A cut of less than half of what a client waits for one answer (5 s)
// so costs only time.
func TestShortCutIsWaitedFor(t *testing.T) {
	for _, p := range []path{double, both} {
		t.Run(p.service, func(t *testing.T) {
			need(t)
			if p == both {
				notShort(t)
			}
			c, begin := cutLine(t, p, 2*time.Second)
			for _, err := range c.errs(begin) {
				t.Error(err)
			}
			worksAgain(t, p)
		})
	}
}

// noticed is when a client must have noticed that the line is cut: from then on
// it gives nothing away that it could not say again elsewhere.
const noticed = time.Second

// A long cut is avoided by whoever can: by then what an application has said may
// be under way, and nobody says it twice; so those that began in the moments
// before the client noticed may fail, and no other.
func TestLongCutIsAvoided(t *testing.T) {
	need(t)
	notShort(t)
	const during = 12 * time.Second
	c, begin := cutLine(t, both, during)
	early := c.begunBetween(begin, -time.Second, noticed)
	failed, _ := early.failed()
	t.Logf("%d connections that began less than %v into the cut failed", len(failed), noticed)
	for _, a := range failed {
		if a.begun.Before(begin.Add(-5 * line.Delay)) {
			t.Errorf("a connection that began %v before the cut failed: %v", begin.Sub(a.begun), a.err)
		}
	}
	for _, err := range c.begunBetween(begin, noticed, time.Hour).errs(begin) {
		t.Error(err)
	}
	for _, a := range c.begunBetween(begin, 0, during) {
		if end := a.begun.Add(a.took).Sub(begin); a.err == nil && end < during && a.place < len(pods) {
			t.Errorf("pod %d answers %v after the cut began", a.place, end)
		}
	}
	for _, a := range c.begunBetween(begin, during-3*time.Second, during-2*time.Second) {
		if end := a.begun.Add(a.took).Sub(begin); end > during {
			t.Errorf("a connection that began %v into the cut waits for its end, while pods on this side are well", a.begun.Sub(begin))
			break
		}
	}
	worksAgain(t, both)
}
