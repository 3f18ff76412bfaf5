package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"
)

// adminPort is the port of admin.address that the chart gives gateways and controllers.
const adminPort = "15000"

// forwardLimit is how long kubectl may take to forward a port.
const forwardLimit = 10 * time.Second

// processes checks a gateway and a controller of a cluster by their admin addresses, to which
// kubectl forwards. Where it cannot that is a warning: who runs this may have no right to, or the
// pod no kubelet.
func (c *checkup) processes(ctx context.Context, k kubectl, where string) {
	var failed []string
	tried := false
	for _, deployment := range []string{"isthmus-gateway", "isthmus-controller"} {
		var o struct{ Status struct{ ReadyReplicas int } }
		if there, err := k.get(ctx, "deployment", deployment, &o); err != nil || !there || o.Status.ReadyReplicas == 0 {
			continue // that is said already
		}
		tried = true
		if err := c.forwarded(ctx, k, deployment, where); err != nil {
			failed = append(failed, err.Error())
		}
	}
	if tried {
		c.add(checkForward, where, checkWarning, strings.Join(failed, "\n"))
	}
}

// forwarded checks one process of a Deployment.
func (c *checkup) forwarded(ctx context.Context, k kubectl, deployment, where string) error {
	address, stop, err := k.forward(ctx, "deployment/"+deployment, adminPort)
	if err != nil {
		return err
	}
	defer stop()
	n := len(c.all)
	if err := c.process(ctx, address, &place{}); err != nil {
		c.all = c.all[:n]
		return err
	}
	for i := range c.all[n:] { // the port is another one each time
		c.all[n+i].Where = strings.Replace(c.all[n+i].Where, address, where, 1)
	}
	return nil
}

// forward has kubectl lead an address of this host to a port of an object until stop.
func (k kubectl) forward(ctx context.Context, object, port string) (address string, stop func(), err error) {
	args := []string{"port-forward", object, ":" + port, "--address", "127.0.0.1", "--pod-running-timeout", "3s", "--namespace", k.namespace}
	if k.kubeconfig != "" {
		args = append(args, "--kubeconfig", k.kubeconfig)
	}
	if k.context != "" {
		args = append(args, "--context", k.context)
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, k.program, args...)
	cmd.WaitDelay = time.Second
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return "", nil, fmt.Errorf("%s port-forward: %w", k.program, err)
	}
	late := time.AfterFunc(forwardLimit, cancel)
	line, err := bufio.NewReader(out).ReadString('\n')
	intime := late.Stop()
	stop = func() { cancel(); cmd.Wait() }
	// Forwarding from 127.0.0.1:40000 -> 15000
	at, _, _ := strings.Cut(strings.TrimPrefix(line, "Forwarding from "), " ")
	if _, parse := netip.ParseAddrPort(at); parse != nil || err != nil || !intime {
		stop()
		why := strings.TrimSpace(failed.String())
		switch {
		case !intime:
			why = fmt.Sprintf("no answer within %v", forwardLimit)
		case why == "":
			why = errors.Join(err, parse).Error()
		}
		return "", nil, fmt.Errorf("%s port-forward %s: %s", k.program, object, why)
	}
	return at, stop, nil
}
