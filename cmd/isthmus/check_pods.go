package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/answer"
)

// unreadyPod is what is read of a pod.
type unreadyPod struct {
	Metadata struct {
		Name              string
		DeletionTimestamp *time.Time
	}
	Spec struct {
		Volumes []struct {
			Secret    *struct{ SecretName string }
			ConfigMap *struct{ Name string }
		}
	}
	Status struct {
		Phase             string
		Reason, Message   string // of one that was evicted
		Conditions        []struct{ Type, Status, Message string }
		ContainerStatuses []struct {
			Name, Image      string
			Ready            bool
			RestartCount     int
			State, LastState struct {
				Waiting    *struct{ Reason, Message string }
				Terminated *ended
			}
		}
	}
}

// ended is how a container did.
type ended struct {
	ExitCode        int
	Reason, Message string
}

func (p *unreadyPod) condition(kind string) (status, message string) {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status, c.Message
		}
	}
	return "", ""
}

// warned is an Event of type Warning.
type warned struct {
	InvolvedObject  struct{ Kind, Name string }
	Reason, Message string
	LastTimestamp   time.Time
}

// podCause is why pods are not ready, with what to do.
type podCause struct {
	why, remedy string
	after       []checkCode // what it may follow from
}

// Remedies by what is wrong with pods; {component} is where the chart has its values.
const (
	upgrade        = "{helm} upgrade {release} {chart} --reuse-values "
	imageRemedy    = upgrade + "--set-string image.registry=REGISTRY,image.tag=TAG # where the nodes reach it, with image.pullSecrets if that takes credentials; or load it into the nodes: docs/operations.md, Images"
	scheduleRemedy = upgrade + "--set {component}.KEY=VALUE # resources, nodeSelector, tolerations or replicas; or make room on the nodes"
	memoryRemedy   = upgrade + "--set {component}.resources.limits.memory=1Gi"
	crashRemedy    = "{kubectl} logs {pod} --previous # correct what it says"
	pendingRemedy  = "{kubectl} logs {pod} # docs/operations.md, Ready"
	mountRemedy    = "{kubectl} describe pod {pod} # make what is named"
	initRemedy     = "isthmus init --network {network} --trust-domain {domain} --apply {at} # with --dir of the directory that it made"
	podRemedy      = "{kubectl} describe pod {pod}"
	securityRemedy = "{kubectl} label namespace {namespace} pod-security.kubernetes.io/enforce=privileged --overwrite"
	quotaRemedy    = upgrade + "--set criticalPodsQuota=true # for critical pods, as on Google's clusters; else raise the ResourceQuota that it names"
	ownerRemedy    = "{kubectl} describe {owner}"
)

// unready says why pods of a workload are not ready.
func (c *checkup) unready(ctx context.Context, x *checkedCluster, p *place, code checkCode, kind, component string, w *workload) error {
	want, ready, _ := w.pods(kind)
	found, level := []string{fmt.Sprintf("%d of %d are ready", ready, want)}, checkWarning
	if ready == 0 {
		level = checkBad
	}
	var pods struct{ Items []unreadyPod }
	if err := p.own(ctx, &pods, "why pods are not ready", "pods", "--selector", "app.kubernetes.io/name=isthmus-"+component); err != nil {
		return err
	}
	var events struct{ Items []warned }
	if err := p.own(ctx, &events, "what nodes say of pods that are not ready", "events", "--field-selector", "type=Warning"); err != nil {
		return err
	}
	slices.SortStableFunc(events.Items, func(a, b warned) int { return a.LastTimestamp.Compare(b.LastTimestamp) })
	d := &diagnosis{x: x, p: p, kind: kind, component: component, events: events.Items}
	var causes []podCause
	pod := map[string][]string{} // by why
	for _, o := range pods.Items {
		if ready, _ := o.condition("Ready"); ready == "True" || o.Metadata.DeletionTimestamp != nil {
			continue
		}
		why := d.of(ctx, &o)
		if pod[why.why] == nil {
			causes = append(causes, why)
		}
		pod[why.why] = append(pod[why.why], o.Metadata.Name)
	}
	if len(pods.Items) < want {
		if why, ok := d.notMade(); ok {
			pod[why.why] = []string{"some cannot be made"}
			causes = append(causes, why)
		}
	}
	var remedies []string
	var after []checkCode
	follows := len(causes) > 0
	for _, why := range causes {
		found = append(found, strings.Join(pod[why.why], ", ")+": "+why.why)
		if !slices.Contains(remedies, why.remedy) {
			remedies = append(remedies, why.remedy)
		}
		after = append(after, why.after...)
		follows = follows && len(why.after) > 0
	}
	if !follows { // one of them has a cause of its own
		after = nil
	}
	c.remedied(code, x.where, level, strings.Join(found, "\n"), cmp.Or(strings.Join(remedies, "\n"), code.remedy), after...)
	return nil
}

// own reads objects of the namespace of the mesh, if whoever runs this may.
func (p *place) own(ctx context.Context, into any, unchecked, kind string, args ...string) error {
	b, err := p.k.run(ctx, nil, append([]string{"get", kind, "--namespace", p.k.namespace, "--output", "json", "--ignore-not-found"}, args...)...)
	if may, err := p.may(err, unchecked); !may || len(b) == 0 {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return exit(exitStart, fmt.Errorf("%s of context %q: %w", kind, p.k.context, err))
	}
	return nil
}

// diagnosis finds why pods of one workload are not ready.
type diagnosis struct {
	x               *checkedCluster
	p               *place
	kind, component string
	events          []warned // the last one last
	asked           bool     // one of them was, what it waits for
}

// event is the last message of a reason at a pod.
func (d *diagnosis) event(pod string, reasons ...string) (said string) {
	for _, e := range d.events {
		if e.InvolvedObject.Kind == "Pod" && e.InvolvedObject.Name == pod && slices.Contains(reasons, e.Reason) {
			said = e.Message
		}
	}
	return said
}

func (d *diagnosis) cause(pod, why, remedy string, after ...checkCode) podCause {
	component := d.component
	if component == "nodeproxy" {
		component = "nodeProxy"
	}
	r := strings.NewReplacer("{component}", component, "{pod}", pod, "{owner}", d.kind+" isthmus-"+d.component)
	return podCause{strings.TrimSuffix(why, ": "), d.p.fill(r.Replace(remedy)), after}
}

// Reasons of containers that wait.
var (
	noImage  = []string{"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable", "ImageInspectError"}
	creating = []string{"ContainerCreating", "PodInitializing"}
)

// of is why one pod is not ready.
func (d *diagnosis) of(ctx context.Context, pod *unreadyPod) podCause {
	name := pod.Metadata.Name
	if scheduled, why := pod.condition("PodScheduled"); scheduled == "False" {
		return d.cause(name, "not scheduled: "+why, scheduleRemedy)
	}
	if pod.Status.Phase == "Failed" {
		return d.cause(name, cmp.Or(pod.Status.Reason, "failed")+": "+pod.Status.Message, podRemedy)
	}
	for _, s := range pod.Status.ContainerStatuses {
		waiting, last := s.State.Waiting, cmp.Or(s.State.Terminated, s.LastState.Terminated)
		switch {
		case s.Ready:
		case waiting != nil && slices.Contains(noImage, waiting.Reason):
			return d.cause(name, fmt.Sprintf("%s: image %q: %s", waiting.Reason, s.Image, cmp.Or(waiting.Message, d.event(name, "Failed"))), imageRemedy)
		case waiting != nil && slices.Contains(creating, waiting.Reason):
			return d.creating(pod)
		case last != nil:
			return d.crashed(ctx, name, s.Name, s.RestartCount, last)
		case waiting != nil:
			return d.cause(name, waiting.Reason+": "+waiting.Message, podRemedy)
		default:
			return d.waits(ctx, name)
		}
	}
	return d.creating(pod)
}

// creating is why a container is not there yet: what it mounts, or what its node says.
func (d *diagnosis) creating(pod *unreadyPod) podCause {
	var lacks []string
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil && d.x.lacking[v.Secret.SecretName] {
			lacks = append(lacks, "Secret "+v.Secret.SecretName)
		}
		if v.ConfigMap != nil && d.x.lacking[v.ConfigMap.Name] {
			lacks = append(lacks, "ConfigMap "+v.ConfigMap.Name)
		}
	}
	name := pod.Metadata.Name
	if len(lacks) > 0 {
		return d.cause(name, "it mounts what is not there: "+strings.Join(lacks, ", "), initRemedy, checkCard, checkSecrets, checkRoots)
	}
	if said := d.event(name, "FailedMount", "FailedAttachVolume"); said != "" {
		return d.cause(name, "it cannot mount: "+said, mountRemedy)
	}
	if said := d.event(name, "FailedCreatePodSandBox"); said != "" {
		return d.cause(name, said, podRemedy+" # its node, and the CNI plugin there")
	}
	return d.cause(name, "its container is being created", podRemedy)
}

// lastWords bounds what is shown of what a process said last.
const lastWords = 600

// crashed is why a container ended.
func (d *diagnosis) crashed(ctx context.Context, pod, container string, restarts int, last *ended) podCause {
	what := fmt.Sprintf("it ended with exit code %d", last.ExitCode)
	if last.Reason != "" && last.Reason != "Error" {
		what += " (" + last.Reason + ")"
	}
	if restarts > 0 {
		what += fmt.Sprintf(" and was restarted, %d times in all", restarts)
	}
	if last.Reason == "OOMKilled" {
		return d.cause(pod, what, memoryRemedy)
	}
	said := strings.TrimSpace(last.Message)
	if said == "" {
		b, err := d.p.k.run(ctx, nil, "logs", pod, "--container", container, "--previous", "--tail", "1", "--namespace", d.p.k.namespace)
		if may, _ := d.p.may(err, "what processes that ended said last"); may { // another error is that it is forgotten
			said = strings.TrimSpace(string(b))
		}
	}
	said = said[strings.LastIndex(said, "\n")+1:]
	return d.cause(pod, what+": "+said[:min(len(said), lastWords)], crashRemedy, checkInstalled)
}

// waits is why a process that runs is not ready, by its own word. One of a workload is asked.
func (d *diagnosis) waits(ctx context.Context, pod string) podCause {
	why := cmp.Or(d.event(pod, "Unhealthy"), "it runs, and is not ready")
	if !d.asked {
		d.asked = true
		if address, stop, err := d.p.k.forward(ctx, "pod/"+pod, adminPort); err == nil {
			var s answer.Status
			if err := ask(ctx, address, "/status", nil, &s); err == nil && len(s.Pending) > 0 {
				why = "it waits: " + strings.ReplaceAll(items(s.Pending), "\n", "; ")
			}
			stop()
		}
	}
	after := []checkCode{checkInstalled, checkRights}
	switch d.component {
	case "gateway":
		after = append(after, checkControl) // who has no certificate waits for it
	case "nodeproxy":
		after = append(after, checkControl, checkGateways)
	}
	return d.cause(pod, why, pendingRemedy, after...)
}

// notMade is why there are fewer pods than wanted.
func (d *diagnosis) notMade() (podCause, bool) {
	said := ""
	for _, e := range d.events {
		if e.Reason == "FailedCreate" && strings.HasPrefix(e.InvolvedObject.Name, "isthmus-"+d.component) {
			said = e.Message
		}
	}
	switch {
	case said == "":
		return podCause{}, false
	case strings.Contains(said, "violates PodSecurity"):
		return d.cause("", said, securityRemedy), true
	case strings.Contains(said, "exceeded quota"), strings.Contains(said, "insufficient quota"):
		return d.cause("", said, quotaRemedy), true
	}
	return d.cause("", said, ownerRemedy), true
}
