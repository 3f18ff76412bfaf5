package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/demoapp"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// strike begins the fault.
func (j *injection) strike(ctx context.Context) error {
	f := j.o.Fault
	switch f.Kind {
	case scenario.Refuse, scenario.Silent, scenario.Hang:
		return j.each(j.o, func(p *pod, port uint16) error { return p.order(ctx, string(f.Kind), port) })
	case scenario.Flap:
		return j.orderAll(ctx, "refuse")
	case scenario.Slow:
		return j.each(j.o, func(p *pod, port uint16) error {
			return p.obey(ctx, demoapp.Order{Do: string(f.Kind), Port: port, DelayMS: f.Delay.Milliseconds()})
		})
	case scenario.PodKill:
		for _, name := range j.o.Victims.Pods { // all at once; then wait for each
			j.pod(name).signal(syscall.SIGKILL)
		}
		for _, name := range j.o.Victims.Pods {
			j.pod(name).kill()
		}
	case scenario.GatewayKill, scenario.NodeProxyKill:
		j.process(j.o.Victims.Process).kill()
	case scenario.Freeze:
		return j.frozen(func(p *process) error { return p.freeze(orderTimeout) })
	case scenario.Blackhole:
		return j.vanish(true)
	case scenario.FederationCut:
		j.cutRelays(ctx)
	}
	return nil
}

func (j *injection) orderAll(ctx context.Context, do string) error {
	return j.each(j.o, func(p *pod, port uint16) error { return p.order(ctx, do, port) })
}

// frozen calls do for every process that the freeze hits.
func (j *injection) frozen(do func(*process) error) error {
	if name := j.o.Victims.Process; name != "" {
		return do(j.process(name))
	}
	for _, name := range j.o.Victims.Pods {
		if err := do(j.pod(name).process); err != nil {
			return err
		}
	}
	return nil
}

// vanish makes the packets of the victims' addresses vanish, or ends that.
func (j *injection) vanish(on bool) error {
	if g := j.o.Victims.Process; g != "" {
		return j.network.vanish(j.gateway(g).Address.Addr(), on)
	}
	for _, name := range j.o.Victims.Pods {
		if err := j.network.vanish(j.pod(name).Address, on); err != nil {
			return err
		}
	}
	return nil
}

func (j *injection) gateway(name string) scenario.Gateway {
	for _, g := range j.layout.Gateways {
		if g.Name == name {
			return g
		}
	}
	return scenario.Gateway{}
}

func (j *injection) node(name string) scenario.Node {
	for _, n := range j.layout.Nodes {
		if n.Name == name {
			return n
		}
	}
	return scenario.Node{}
}

// prove looks whether the fault took effect.
func (j *injection) prove(ctx context.Context) (proof string, ok bool) {
	switch f := j.o.Fault; f.Kind {
	case scenario.PodKill:
		return j.proveEach(ctx, "refused", j.one("is killed: it refuses connections", "are killed: they refuse connections"))
	case scenario.Refuse, scenario.Flap:
		return j.proveEach(ctx, "refused", j.one("refuses connections", "refuse connections"))
	case scenario.Silent:
		return j.proveEach(ctx, "silent", j.one("accepts and stays silent", "accept and stay silent"))
	case scenario.Hang:
		return j.proveEach(ctx, "hangs", j.one("leaves connects unanswered", "leave connects unanswered"))
	case scenario.Slow:
		return j.proveSlow(ctx)
	case scenario.GatewayKill, scenario.NodeProxyKill:
		return j.proveProcess(ctx, "was killed and", "refused")
	case scenario.Freeze:
		if j.o.Victims.Process != "" {
			return j.proveProcess(ctx, "was stopped and", "silent")
		}
		return j.proveEach(ctx, "silent", j.one("is stopped: it stays silent", "are stopped: they stay silent"))
	case scenario.Blackhole:
		if j.o.Victims.Process != "" {
			return j.proveProcess(ctx, "is cut off and", "hangs")
		}
		return j.proveEach(ctx, "hangs", j.one("is cut off: packets vanish", "are cut off: packets vanish"))
	case scenario.FederationCut:
		return j.proveCut()
	}
	return "cannot be proved", false
}

// proveProcess probes a gateway where it listens, or a node proxy at its admin
// address.
func (j *injection) proveProcess(ctx context.Context, what, want string) (string, bool) {
	name := j.o.Victims.Process
	addr := j.node(name).Admin
	if g := j.gateway(name); g.Name != "" {
		addr = g.Address
	}
	got := j.network.probeFor(ctx, addr, want)
	if got != want {
		return fmt.Sprintf("%s %s %s %s, expected %s", name, what, addr, got, want), false
	}
	verb := map[string]string{"refused": "is refused", "silent": "stays silent", "hangs": "leaves connects unanswered"}[want]
	return fmt.Sprintf("%s %s %s %s", name, what, addr, verb), true
}

// proveEach probes every victim's port directly, beside the mesh.
func (j *injection) proveEach(ctx context.Context, want, verb string) (string, bool) {
	err := j.each(j.o, func(p *pod, port uint16) error {
		if got := j.network.probeFor(ctx, netip.AddrPortFrom(p.Address, port), want); got != want {
			return fmt.Errorf("%s port %d %s, expected %s", p.Name, port, got, want)
		}
		return nil
	})
	if err != nil {
		return err.Error(), false
	}
	return j.victims() + " " + verb + " on port " + j.ports(), true
}

// proveSlow times an answer of every victim.
func (j *injection) proveSlow(ctx context.Context) (string, bool) {
	delay := j.o.Fault.Delay
	err := j.each(j.o, func(p *pod, port uint16) error {
		began := time.Now()
		got := j.network.probe(ctx, netip.AddrPortFrom(p.Address, port), orderTimeout, delay+orderTimeout)
		if took := time.Since(began); got != "answers" || took < delay {
			return fmt.Errorf("%s port %d %s after %v, expected an answer after %v", p.Name, port, got, took.Round(time.Millisecond), delay)
		}
		return nil
	})
	if err != nil {
		return err.Error(), false
	}
	return fmt.Sprintf("%s %s connections %v late on port %s", j.victims(), j.one("takes", "take"), delay, j.ports()), true
}

func (j *injection) victims() string { return strings.Join(j.o.Victims.Pods, ", ") }

// one is the verb for the victims: singular if there is one.
func (j *injection) one(singular, plural string) string {
	if len(j.o.Victims.Pods) == 1 {
		return singular
	}
	return plural
}

// ports names the ports that the fault takes.
func (j *injection) ports() string {
	var names []string
	for _, p := range j.layout.Scenario.Ports() {
		for _, v := range j.o.Victims.Ports {
			if v == p.Target {
				names = append(names, p.Name)
			}
		}
	}
	return strings.Join(names, ", ")
}

// mend ends the fault and returns once the victims are well.
func (j *injection) mend(ctx context.Context) error {
	switch j.o.Fault.Kind {
	case scenario.Refuse, scenario.Silent, scenario.Hang, scenario.Flap, scenario.Slow:
		if err := j.orderAll(ctx, "heal"); err != nil {
			return err
		}
	case scenario.PodKill:
		for _, name := range j.o.Victims.Pods {
			if err := j.startPod(ctx, j.pod(name).Pod); err != nil {
				return err
			}
		}
	case scenario.GatewayKill, scenario.NodeProxyKill:
		return j.restart(ctx, j.o.Victims.Process)
	case scenario.Freeze:
		if err := j.frozen((*process).thaw); err != nil {
			return err
		}
	case scenario.Blackhole:
		if err := j.vanish(false); err != nil {
			return err
		}
	case scenario.FederationCut:
		for _, r := range j.cut {
			r.setCut(false)
		}
		return nil
	}
	if name := j.o.Victims.Process; name != "" {
		return j.wellAgain(ctx, name)
	}
	return j.each(j.o, func(p *pod, port uint16) error {
		if got := j.network.probeFor(ctx, netip.AddrPortFrom(p.Address, port), "answers"); got != "answers" {
			return fmt.Errorf("%s port %d %s, expected an answer", p.Name, port, got)
		}
		return nil
	})
}

// wellAgain waits until a process that was not restarted is ready, and a gateway
// can be reached.
func (j *injection) wellAgain(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %v", startTimeout))
	defer cancel()
	admin := j.node(name).Admin
	if g := j.gateway(name); g.Name != "" {
		admin = g.Admin
		if got := j.network.probeFor(ctx, g.Address, "answers"); got != "closes" && got != "answers" {
			return fmt.Errorf("%s %s %s, expected an answer", name, g.Address, got)
		}
	}
	return j.ready(ctx, j.process(name), admin)
}
