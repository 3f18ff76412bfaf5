package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/drill"
)

// look is how long the injector waits for a sign of life before it believes
// that there is none.
const look = 300 * time.Millisecond

// injection is one fault under way. One goroutine owns it.
type injection struct {
	*armRun
	o   drill.Outage
	cut []*gossipRelay // of a federation cut
}

// inject runs fault i from its instant to its end and returns what happened.
// It returns early when ctx ends.
func (a *armRun) inject(ctx context.Context, i int) drill.Outage {
	f := a.layout.Scenario.Faults[i]
	j := &injection{armRun: a, o: drill.Outage{Fault: f, Victims: a.layout.VictimsOf(i), Proof: "never begun"}}
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
	j.say(drill.Happening{At: effect.Seconds(), Kind: "fault", Text: "fault " + j.o.Fault.Name + ": " + proof})
	return true
}

// end waits for the fault's time to be over and heals it. One that is never
// healed ends with the arm.
func (j *injection) end(ctx context.Context) {
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
func (a *armRun) each(o drill.Outage, do func(p *pod, port uint16) error) error {
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

// strike begins the fault.
func (j *injection) strike(ctx context.Context) error {
	switch j.o.Fault.Kind {
	case drill.Refuse, drill.Silent, drill.Hang:
		return j.each(j.o, func(p *pod, port uint16) error { return p.order(ctx, string(j.o.Fault.Kind), port) })
	case drill.PodKill:
		for _, name := range j.o.Victims.Pods { // all at once; then wait for each
			j.pod(name).signal(syscall.SIGKILL)
		}
		for _, name := range j.o.Victims.Pods {
			j.pod(name).kill()
		}
	case drill.GatewayKill, drill.NodeProxyKill:
		j.process(j.o.Victims.Process).kill()
	case drill.FederationCut:
		j.cut = j.relaysOf(j.o.Fault)
		for _, r := range j.cut {
			r.before = r.passed.Load()
			r.setCut(true)
		}
		sleep(ctx, 20*time.Millisecond) // what was being written when the cut came
		for _, r := range j.cut {
			r.atCut = r.passed.Load()
		}
	}
	return nil
}

// prove looks whether the fault took effect.
func (j *injection) prove(ctx context.Context) (proof string, ok bool) {
	switch j.o.Fault.Kind {
	case drill.Refuse:
		return j.proveEach(ctx, "refused")
	case drill.Silent:
		return j.proveEach(ctx, "silent")
	case drill.Hang:
		return j.proveEach(ctx, "hangs")
	case drill.PodKill:
		return j.proveEach(ctx, "refused")
	case drill.GatewayKill:
		for _, g := range j.layout.Gateways {
			if g.Name == j.o.Victims.Process {
				return proveAt(ctx, g.Name+" was killed and", g.Address, "refused")
			}
		}
	case drill.NodeProxyKill:
		for _, n := range j.layout.Nodes {
			if n.Name == j.o.Victims.Process {
				return proveAt(ctx, n.Name+" was killed and", n.Admin, "refused")
			}
		}
	case drill.FederationCut:
		return j.proveCut()
	}
	return "cannot be proved", false
}

func proveAt(ctx context.Context, who string, addr netip.AddrPort, want string) (string, bool) {
	got := probe(ctx, addr, look)
	if got != want {
		return fmt.Sprintf("%s %s %s, expected %s", who, addr, got, want), false
	}
	return fmt.Sprintf("%s %s is %s", who, addr, want), true
}

// proveEach probes every victim's port directly, beside the mesh.
func (j *injection) proveEach(ctx context.Context, want string) (string, bool) {
	err := j.each(j.o, func(p *pod, port uint16) error {
		if got := probe(ctx, netip.AddrPortFrom(p.Address, port), look); got != want {
			return fmt.Errorf("%s port %d %s, expected %s", p.Name, port, got, want)
		}
		return nil
	})
	if err != nil {
		return err.Error(), false
	}
	var names []string
	for _, p := range j.layout.Scenario.Ports() {
		for _, v := range j.o.Victims.Ports {
			if v == p.Target {
				names = append(names, p.Name)
			}
		}
	}
	verb := map[string]string{"refused": "refuse connections", "silent": "accept and stay silent", "hangs": "leave connects unanswered"}[want]
	return fmt.Sprintf("%s %s on port %s", strings.Join(j.o.Victims.Pods, ", "), verb, strings.Join(names, ", ")), true
}

// mend ends the fault and returns once the victims are well.
func (j *injection) mend(ctx context.Context) error {
	switch j.o.Fault.Kind {
	case drill.Refuse, drill.Silent, drill.Hang:
		if err := j.each(j.o, func(p *pod, port uint16) error { return p.order(ctx, "heal", port) }); err != nil {
			return err
		}
	case drill.PodKill:
		for _, name := range j.o.Victims.Pods {
			if err := j.startPod(ctx, j.pod(name).Pod); err != nil {
				return err
			}
		}
	case drill.GatewayKill, drill.NodeProxyKill:
		return j.restart(ctx, j.o.Victims.Process)
	case drill.FederationCut:
		for _, r := range j.cut {
			r.setCut(false)
		}
		return nil
	}
	return j.each(j.o, func(p *pod, port uint16) error {
		if got := probe(ctx, netip.AddrPortFrom(p.Address, port), orderTimeout); got != "answers" {
			return fmt.Errorf("%s port %d %s, expected an answer", p.Name, port, got)
		}
		return nil
	})
}
