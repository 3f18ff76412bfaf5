package main

import (
	"context"
	"fmt"
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
func (c *checkup) workloads(ctx context.Context, k kubectl, where string) error {
	var rollouts []string
	installed, stuck := false, checkWarning
	for _, x := range []struct {
		code       checkCode
		kind, name string
		needed     bool
	}{{checkGateways, "deployment", "isthmus-gateway", true}, {checkControl, "deployment", "isthmus-controller", false}, {checkNodes, "daemonset", "isthmus-nodeproxy", false}} {
		var w workload
		there, err := k.get(ctx, x.kind, x.name, &w)
		if err != nil {
			return err
		}
		if !there {
			if x.needed {
				c.add(x.code, where, checkBad, fmt.Sprintf("there is no %s %s: install the chart", x.kind, x.name))
			}
			continue // it is not installed: helm/README.md
		}
		installed = true
		want, ready, _ := w.pods(x.kind)
		found, level := "", checkWarning
		if ready < want {
			found = fmt.Sprintf("%d of %d are ready", ready, want)
		}
		if ready == 0 {
			level = checkBad
		}
		c.add(x.code, where, level, found)
		if found, level = w.rollout(x.kind); found != "" {
			rollouts = append(rollouts, fmt.Sprintf("%s %s: %s", x.kind, x.name, found))
		}
		if level == checkBad {
			stuck = level
		}
	}
	if installed {
		c.add(checkRollouts, where, stuck, items(rollouts))
	}
	return nil
}
