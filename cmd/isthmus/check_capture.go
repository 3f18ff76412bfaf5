package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/isthmus-mesh/isthmus/internal/answer"
)

// labelDataplane says of a pod or a namespace whether it is in the mesh.
const labelDataplane = "istio.io/dataplane-mode"

// scopesThatCapture are the values of capture.scope by which pods are captured.
var scopesThatCapture = []string{"vips", "all"}

// leftOut names pods that would be captured, by their label or that of their namespace, and have no network
// namespace of their own.
func (c *checkup) leftOut(ctx context.Context, x *checkedCluster, p *place) error {
	if !x.captures {
		return nil
	}
	type meta struct {
		Namespace, Name string
		Labels          map[string]string
	}
	var namespaces struct{ Items []struct{ Metadata meta } }
	_, err := p.k.list(ctx, &namespaces, "namespaces", "--selector", labelDataplane+"=ambient")
	if may, err := p.may(err, checkLeftOut.code); !may {
		return err
	}
	var pods struct {
		Items []struct {
			Metadata meta
			Spec     struct{ HostNetwork bool }
			Status   struct{ Phase string }
		}
	}
	_, err = p.k.list(ctx, &pods, "pods", "--field-selector", "spec.hostNetwork=true")
	if err != nil && strings.Contains(err.Error(), "field label not supported") { // before Kubernetes 1.28
		_, err = p.k.list(ctx, &pods, "pods")
	}
	if may, err := p.may(err, checkLeftOut.code); !may {
		return err
	}
	var found []string
	for _, o := range pods.Items {
		mode := o.Metadata.Labels[labelDataplane]
		for _, n := range namespaces.Items {
			if mode == "" && n.Metadata.Name == o.Metadata.Namespace {
				mode = "ambient"
			}
		}
		if o.Spec.HostNetwork && mode == "ambient" && o.Status.Phase != "Succeeded" && o.Status.Phase != "Failed" {
			found = append(found, fmt.Sprintf("pod %s/%s", o.Metadata.Namespace, o.Metadata.Name))
		}
	}
	c.add(checkLeftOut, x.where, checkWarning, firstOf(found))
	return nil
}

const (
	// captureLimit bounds how long the node proxies of a cluster are asked.
	captureLimit = 30 * time.Second
	// captureAtOnce is how many are asked at once, each by a kubectl of its own.
	captureAtOnce = 8
)

// nodePod is what is read of a node proxy's pod.
type nodePod struct {
	Metadata struct {
		Name              string
		DeletionTimestamp *time.Time
	}
	Spec   struct{ NodeName string }
	Status struct {
		Conditions []struct{ Type, Status string }
	}
}

func (o *nodePod) ready() bool {
	for _, c := range o.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True" && o.Metadata.DeletionTimestamp == nil
		}
	}
	return false
}

func (o *nodePod) String() string {
	return fmt.Sprintf("node %s (%s)", o.Spec.NodeName, o.Metadata.Name)
}

// capturing asks the node proxies of a cluster, by kubectl, whether they capture the pods of their nodes. Nobody else
// knows: what keeps a node from it are its kernel and the rights that it gives.
func (c *checkup) capturing(ctx context.Context, x *checkedCluster, p *place) error {
	if !x.captures {
		return nil
	}
	var pods struct{ Items []nodePod }
	if err := p.own(ctx, &pods, checkCapture.code, "pods", "--selector", "app.kubernetes.io/name=isthmus-nodeproxy"); err != nil {
		return err
	}
	served := map[string]bool{} // nodes with a node proxy that is ready
	for _, o := range pods.Items {
		served[o.Spec.NodeName] = served[o.Spec.NodeName] || o.ready()
	}
	asked := slices.DeleteFunc(slices.Clone(pods.Items), func(o nodePod) bool { return !o.ready() })
	wrong, unasked := askCaptures(ctx, p.k, asked)
	var unready []string
	for _, o := range pods.Items {
		if o.Spec.NodeName != "" && !served[o.Spec.NodeName] {
			unready = append(unready, fmt.Sprintf("%s: its node proxy is not ready", &o))
		}
	}
	if len(asked)+len(unready) == 0 {
		return nil // that there is none is said already
	}
	level := checkWarning
	if len(wrong) > 0 {
		level = checkBad
	}
	var after []checkCode
	if len(wrong)+len(unasked) == 0 {
		after = append(after, checkNodes)
	}
	c.add(checkCapture, x.where, level, firstOf(slices.Concat(wrong, unasked, unready)), after...)
	return nil
}

// askCaptures asks node proxies why pods are not captured; unasked are those that could not be.
func askCaptures(ctx context.Context, k kubectl, pods []nodePod) (wrong, unasked []string) {
	ctx, cancel := context.WithTimeout(ctx, captureLimit)
	defer cancel()
	var mu sync.Mutex
	var all errgroup.Group
	all.SetLimit(captureAtOnce)
	for _, o := range pods {
		all.Go(func() error {
			lacks, err := askCapture(ctx, k, o.Metadata.Name)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case ctx.Err() != nil:
				unasked = append(unasked, fmt.Sprintf("%s: not asked within %v", &o, captureLimit))
			case err != nil:
				unasked = append(unasked, fmt.Sprintf("%s cannot be asked: %v", &o, err))
			}
			for _, why := range lacks {
				wrong = append(wrong, fmt.Sprintf("%s: %s", &o, why))
			}
			return nil
		})
	}
	all.Wait()
	return wrong, unasked
}

func askCapture(ctx context.Context, k kubectl, pod string) ([]string, error) {
	address, stop, err := k.forward(ctx, "pod/"+pod, adminPort)
	if err != nil {
		return nil, err
	}
	defer stop()
	var s answer.Status
	if err := ask(ctx, address, "/status", nil, &s); err != nil {
		return nil, err
	}
	return lacksCapture(&s), nil
}

// lacksCapture is what a node proxy says of why pods of its node are not captured.
func lacksCapture(s *answer.Status) []string {
	if s.Captured == nil {
		return []string{"it captures nothing: the configuration that it began with is not the one that is installed now"}
	}
	return s.Uncaptured
}
