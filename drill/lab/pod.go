package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/demoapp"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// pod is one application process under control over its stdin and stdout.
type pod struct {
	scenario.Pod
	*process
	replies chan demoapp.Reply
}

// orderTimeout bounds how long an application may take to obey.
const orderTimeout = 5 * time.Second

// launchPod starts the application of p and waits until it listens.
func (a *armRun) launchPod(ctx context.Context, p scenario.Pod) (*pod, error) {
	args := []string{"app", "--control", "--name", p.Name, "--exchange", a.layout.Scenario.ExchangeOf(a.arm)}
	for _, port := range a.layout.Scenario.Ports() {
		args = append(args, "--listen", fmt.Sprintf("%s:%d", p.Address, port.Target))
	}
	d := &pod{Pod: p, replies: make(chan demoapp.Reply, 4)}
	obeyed := func(line []byte) {
		var r demoapp.Reply
		if json.Unmarshal(line, &r) == nil {
			select {
			case d.replies <- r:
			default: // nobody asked
			}
		}
	}
	proc, err := a.launch(p.Name, a.bin.isthmus, args, true, obeyed)
	if err != nil {
		return nil, err
	}
	d.process = proc
	if err := d.await(ctx, "ready", startTimeout); err != nil {
		return nil, a.startError(p.Name, err)
	}
	return d, nil
}

// order makes the application do something to one of its ports and waits until
// that has taken effect.
func (p *pod) order(ctx context.Context, do string, port uint16) error {
	return p.obey(ctx, demoapp.Order{Do: do, Port: port})
}

func (p *pod) obey(ctx context.Context, o demoapp.Order) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err := p.in.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("tell %s to %s: %w", p.Name, o.Do, err)
	}
	return p.await(ctx, o.Do, orderTimeout)
}

func (p *pod) await(ctx context.Context, do string, limit time.Duration) error {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case r := <-p.replies:
		if r.Error != "" {
			return fmt.Errorf("%s: %s", p.Name, r.Error)
		}
		if r.Do != do {
			return fmt.Errorf("%s answered %q instead of %q", p.Name, r.Do, do)
		}
		return nil
	case <-p.gone:
		return fmt.Errorf("%s ended: %s", p.Name, p.status)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return fmt.Errorf("%s did not %s within %v", p.Name, do, limit)
	}
}
