package kubernetes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// outcome is how one connection of the application in a pod went (see app).
type outcome struct {
	At     time.Time
	Millis float64 `json:"ms"`
	Answer string
	Error  string
}

// took is how long it took.
func (o outcome) took() time.Duration { return time.Duration(o.Millis * float64(time.Millisecond)) }

// over is when it was over.
func (o outcome) over() time.Time { return o.At.Add(o.took()) }

// outcomes are those of one load, in the order in which they were begun.
type outcomes []outcome

// loading is a load that a pod makes.
type loading struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan error
}

// load has a pod of demo begin so many connections a second to a URL, which more options may go before.
func (w *realWorld) load(t *testing.T, network, pod, url string, rate int, duration time.Duration) *loading {
	t.Helper()
	l := &loading{t: t, done: make(chan error, 1)}
	l.cmd = exec.Command("bash", "-c", fmt.Sprintf("exec kubectl --context %s --namespace demo exec %s -- /app load -rate %d -for %v %s", network, pod, rate, duration, url))
	l.cmd.Dir, l.cmd.Env = w.operator.dir, w.env
	l.cmd.Stdout, l.cmd.Stderr = &l.out, &l.out
	w.must(w.enter(l.cmd.Start))
	go func() { l.done <- l.cmd.Wait() }()
	t.Cleanup(func() { l.cmd.Process.Kill() })
	return l
}

// end waits for the end of the load.
func (l *loading) end() outcomes {
	l.t.Helper()
	if err := <-l.done; err != nil {
		l.t.Fatalf("%v: %s", err, l.out.Bytes()[max(0, l.out.Len()-2000):])
	}
	return parse(l.t, l.out.String())
}

func parse(t *testing.T, text string) (out outcomes) {
	t.Helper()
	for line := range strings.Lines(text) {
		var o outcome
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b outcome) int { return a.At.Compare(b.At) })
	if len(out) == 0 {
		t.Fatal("the load has no outcomes")
	}
	return out
}

// failed are those without an answer.
func (o outcomes) failed() outcomes {
	return o.where(func(x outcome) bool { return x.Error != "" })
}

// where are those of which f says so.
func (o outcomes) where(f func(outcome) bool) (out outcomes) {
	for _, x := range o {
		if f(x) {
			out = append(out, x)
		}
	}
	return out
}

// String says what a reader of the test's log wants to know.
func (o outcomes) String() string {
	if len(o) == 0 {
		return "none"
	}
	var ok []float64
	pods, errors := map[string]int{}, map[string]int{}
	for _, x := range o {
		if x.Error != "" {
			cause := x.Error
			if i := strings.LastIndex(cause, ": "); i > 0 {
				cause = cause[i+2:]
			}
			errors[cause]++
			continue
		}
		ok = append(ok, x.Millis)
		if f := strings.Fields(x.Answer); len(f) > 2 {
			pods[f[2][strings.LastIndex(f[2], "-")+1:]]++ // hello from echo-west-76bbc5c8bd-2km94 to …
		}
	}
	slices.Sort(ok)
	text := fmt.Sprintf("%d connections, %d failed", len(o), len(o)-len(ok))
	if len(ok) > 0 {
		text += fmt.Sprintf(", p50 %.1f ms, p99 %.1f ms, most %.1f ms, by pod %v", ok[len(ok)/2], ok[len(ok)*99/100], ok[len(ok)-1], pods)
	}
	if len(errors) > 0 {
		text += fmt.Sprintf(", errors %v, the first %q", errors, o.failed()[0].Error)
	}
	return text
}
