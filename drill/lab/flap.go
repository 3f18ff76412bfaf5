package lab

import (
	"context"
	"fmt"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/measure"
)

// flap goes on with a fault that has begun: its pods refuse for down, answer for
// up, and so on until the fault's end. Every edge is looked at. False if ctx
// ended first, or an edge failed: then the fault is not believed.
func (j *injection) flap(ctx context.Context) bool {
	f := j.o.Fault
	end := f.Until
	if end == 0 {
		end = 1<<63 - 1
	}
	for from := j.o.Begin; ; from = j.now() {
		ok := j.sleepUntil(ctx, min(from+f.Down, end))
		j.o.Downs = append(j.o.Downs, measure.Window{Name: f.Name, From: from, To: j.now()})
		switch {
		case !ok:
			return false
		case j.now() >= end:
			return true
		case !j.edge(ctx, "heal", "answers") || !j.sleepUntil(ctx, min(j.now()+f.Up, end)):
			return false
		case j.now() >= end:
			return true
		case !j.edge(ctx, "refuse", "refused"):
			return false
		}
	}
}

// edge turns the victims over and looks whether they turned.
func (j *injection) edge(ctx context.Context, do, want string) bool {
	err := j.orderAll(ctx, do)
	if err == nil {
		if proof, ok := j.proveEach(ctx, want, want); !ok {
			err = fmt.Errorf("%s", proof)
		}
	}
	if err != nil && ctx.Err() == nil {
		j.o.Effect = 0
		j.o.Proof += fmt.Sprintf("; %s at %.3f s: %v", do, j.now().Seconds(), err)
	}
	return err == nil
}

// flapped sums the fault up.
func (j *injection) flapped() {
	var down time.Duration
	for _, w := range j.o.Downs {
		down += w.To - w.From
	}
	j.o.Proof += fmt.Sprintf("; they did so %d times, for %.1f s in all", len(j.o.Downs), down.Seconds())
}
