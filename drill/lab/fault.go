package lab

import (
	"context"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/measure"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// look is how long the injector waits for a sign of life before it believes
// that there is none.
const look = 300 * time.Millisecond

// injection is one fault under way. One goroutine owns it.
type injection struct {
	*armRun
	o   measure.Outage
	cut []*gossipRelay // of a federation cut
}

// inject runs fault i from its instant to its end and returns what happened.
// It returns early when ctx ends.
func (a *armRun) inject(ctx context.Context, i int) measure.Outage {
	f := a.layout.Scenario.Faults[i]
	j := &injection{armRun: a, o: measure.Outage{Fault: f, Victims: a.layout.VictimsOf(i), Proof: "never begun"}}
	if a.sleepUntil(ctx, f.At) && j.begin(ctx) {
		j.end(ctx)
	}
	return j.o
}

// begin strikes and proves; false if the fault could not even be tried.
func (j *injection) begin(ctx context.Context) bool {
	j.o.Begin = j.now()
	if err := j.strike(ctx); err != nil {
		j.o.Proof = err.Error()
		j.tell("exit", "fault "+j.o.Fault.Name+": "+err.Error())
		return false
	}
	effect := j.now()
	proof, ok := j.prove(ctx)
	j.o.Proof = proof
	if ok {
		j.o.Effect = effect
	}
	j.say(measure.Happening{At: effect.Seconds(), Kind: "fault", Text: "fault " + j.o.Fault.Name + ": " + proof})
	return true
}

// end waits for the fault's time to be over and heals it. One that is never
// healed ends with the arm.
func (j *injection) end(ctx context.Context) {
	if j.o.Fault.Kind == scenario.Flap {
		done := j.flap(ctx)
		j.flapped()
		if !done {
			return
		}
	}
	if j.o.Fault.Until == 0 {
		<-ctx.Done()
		j.lastLook()
		return
	}
	if !j.sleepUntil(ctx, j.o.Fault.Until) {
		return
	}
	j.lastLook()
	j.o.Heal = j.now()
	if err := j.mend(ctx); err != nil {
		j.tell("exit", "fault "+j.o.Fault.Name+" does not heal: "+err.Error())
		return
	}
	j.o.Healed = j.now()
	j.tell("healed", "fault "+j.o.Fault.Name+" healed")
}

func (a *armRun) sleepUntil(ctx context.Context, at time.Duration) bool {
	return sleep(ctx, at-a.now())
}

// each calls do for every victim pod and port at once and returns the first error.
func (a *armRun) each(o measure.Outage, do func(p *pod, port uint16) error) error {
	errs := make(chan error)
	for _, name := range o.Victims.Pods {
		go func() {
			var err error
			for _, port := range o.Victims.Ports {
				if e := do(a.pod(name), port); err == nil {
					err = e
				}
			}
			errs <- err
		}()
	}
	var first error
	for range o.Victims.Pods {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}
