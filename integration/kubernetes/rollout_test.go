package kubernetes

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// The Deployment of gateways is rolled under 200 connections a second (fewer where the machine
// has no time for them), by the real
// Deployment controller, with the chart's own lame duck and drain, behind one address of a
// load balancer that hears of each change three seconds late.
func TestGatewayDeploymentRollsUnderTraffic(t *testing.T) {
	n := newNewcomer(t, func(t *testing.T, p *demoPod, port int) { p.serve(t, port) })
	lines := withSocks(t)
	for _, line := range lines[:undone(t, lines)] {
		if !strings.HasPrefix(line, "curl") {
			n.follow(t, line)
		}
	}
	eventually(t, time.Minute, "a pod of west answers a pod of east", func() bool { return n.client.call(hello).err == nil })
	agent := n.agents[n.west]
	old := agent.running("isthmus-gateway-")
	if len(old) != 2 {
		t.Fatalf("%d gateways run on west, want 2", len(old))
	}
	load := n.client.start(hello, 5*time.Millisecond)
	eventually(t, time.Minute, "there is traffic", func() bool { return len(load.since(time.Time{})) > 1000 })
	began := time.Now()
	n.does(t, "helm --kube-context west upgrade isthmus helm/isthmus --namespace isthmus-system --reuse-values --set gateway.podAnnotations.rolled=yes")
	n.does(t, "kubectl --context west --namespace isthmus-system rollout status deployment/isthmus-gateway --timeout 3m")
	t.Logf("the new gateways are ready after %.0f s", time.Since(began).Seconds())
	eventually(t, 3*time.Minute, "the old gateways have ended", func() bool { return len(agent.running("isthmus-gateway-")) == 2 })
	over := time.Now()
	t.Logf("the old gateways have ended after %.0f s", over.Sub(began).Seconds())
	for _, p := range agent.running("isthmus-gateway-") {
		if slices.Contains(old, p) {
			t.Errorf("%s runs still, one of the old gateways", p.name)
		}
	}
	for _, p := range old {
		if s := p.process.State(); !s.Success() {
			t.Errorf("%s ended with %v, want 0", p.name, s)
		}
	}
	eventually(t, time.Minute, "there is traffic by the new ones alone", func() bool { return len(load.since(over)) > 1000 })
	agent.calm(t)
	all := load.Stop()
	took := time.Since(began)
	t.Logf("%d connections, %.0f a second", len(all), float64(len(load.since(began)))/took.Seconds())
	flawless(t, all)
}

// running are the pods with this prefix of a name whose processes run.
func (a *agent) running(prefix string) (out []*agentPod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pods {
		select {
		case <-p.process.Ended():
		default:
			if strings.HasPrefix(p.name, prefix) {
				out = append(out, p)
			}
		}
	}
	slices.SortFunc(out, func(x, y *agentPod) int { return strings.Compare(x.name, y.name) })
	return out
}
