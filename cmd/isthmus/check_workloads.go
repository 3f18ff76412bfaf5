package main

import (
	"context"
	"fmt"
	"strings"
)

// workload is what is read of a Deployment or DaemonSet.
type workload struct {
	Metadata struct{ Generation int64 }
	Spec     struct{ Replicas *int }
	Status   struct {
		ObservedGeneration                                                             int64
		ReadyReplicas, UpdatedReplicas                                                 int // of a Deployment
		DesiredNumberScheduled, NumberReady, NumberUnavailable, UpdatedNumberScheduled int // of a DaemonSet
		Conditions                                                                     []struct{ Type, Status, Reason, Message string }
	}
}

// pods are how many are wanted, ready, and of the present version.
func (w *workload) pods(kind string) (want, ready, updated int) {
	if kind == "daemonset" {
		return w.Status.DesiredNumberScheduled, w.Status.NumberReady, w.Status.UpdatedNumberScheduled
	}
	want = 1
	if w.Spec.Replicas != nil {
		want = *w.Spec.Replicas
	}
	return want, w.Status.ReadyReplicas, w.Status.UpdatedReplicas
}

// rollout says what of the present version is not there, and whether that is given up.
func (w *workload) rollout(kind string) (found, level string) {
	for _, c := range w.Status.Conditions {
		if c.Type == "Progressing" && c.Status == "False" {
			return fmt.Sprintf("the rollout is stuck (%s): %s", c.Reason, c.Message), checkBad
		}
	}
	want, _, updated := w.pods(kind)
	switch {
	case w.Status.ObservedGeneration < w.Metadata.Generation:
		return "its last change was not looked at yet by the cluster's controller manager", checkWarning
	case updated < want:
		return fmt.Sprintf("%d of %d pods are of the present version, the rollout goes on or waits", updated, want), checkWarning
	}
	return "", checkWell
}

// workloads checks expected against actual pods.
func (c *checkup) workloads(ctx context.Context, x *checkedCluster, p *place) error {
	var rollouts []string
	installed, stuck := false, checkWarning
	for _, of := range []struct {
		code            checkCode
		kind, component string
		needed          bool
	}{{checkGateways, "deployment", "gateway", true}, {checkControl, "deployment", "controller", false}, {checkNodes, "daemonset", "nodeproxy", false}} {
		var w workload
		name := "isthmus-" + of.component
		there, err := p.k.get(ctx, of.kind, name, &w)
		may, err := p.may(err, of.code.code)
		if err != nil {
			return err
		}
		if x.gateways = x.gateways || of.needed && (there || !may); !may {
			continue
		}
		if !there {
			if of.needed {
				c.remedied(of.code, x.where, checkBad, fmt.Sprintf("there is no %s %s", of.kind, name), notInstalled(x))
			}
			continue // it is not installed: helm/README.md
		}
		installed = true
		if want, ready, _ := w.pods(of.kind); ready >= want {
			c.add(of.code, x.where, checkBad, "")
		} else if err := c.unready(ctx, x, p, of.code, of.kind, of.component, &w); err != nil {
			return err
		}
		found, level := w.rollout(of.kind)
		if found != "" {
			rollouts = append(rollouts, fmt.Sprintf("%s %s: %s", of.kind, name, found))
		}
		if level == checkBad {
			stuck = level
		}
	}
	if installed {
		c.add(checkRollouts, x.where, stuck, items(rollouts), checkGateways, checkControl, checkNodes)
	}
	return nil
}

// notInstalled is the remedy of a cluster without gateways.
func notInstalled(x *checkedCluster) string {
	if len(x.installed) > 0 {
		return strings.TrimSpace(upgrade)
	}
	return "{helm} install isthmus {chart} --create-namespace --set network={network},trustDomain={domain} --set-string image.registry=REGISTRY,image.tag=TAG # of your images: docs/kubernetes.md"
}
