package owned

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/isthmus-mesh/isthmus/controller/notices"
)

// kinds are what Events are written at.
var kinds = map[notices.Kind]struct {
	kind, group, resource string
}{
	notices.Namespace:     {"Namespace", "", "namespaces"},
	notices.Service:       {"Service", "", "services"},
	notices.Pod:           {"Pod", "", "pods"},
	notices.ServiceExport: {"ServiceExport", group, "serviceexports"},
	notices.ServiceImport: {"ServiceImport", group, "serviceimports"},
}

// Tell writes an Event at its object, so that `kubectl describe` shows it there. One that
// was told before is counted up. It fails with ErrGone if there is no such object.
func (c *Client) Tell(ctx context.Context, n notices.Notice, now time.Time) error {
	k, ok := kinds[n.Kind]
	if !ok {
		return fmt.Errorf("event at %s: no such kind", n.Object)
	}
	version := "v1"
	if k.group != "" {
		var err error
		if version, err = c.versionOf(ctx, k.resource); err != nil {
			return err
		} else if version == "" {
			return ErrGone
		}
	}
	return c.once(ctx, "write events", func(ctx context.Context) error {
		o, err := c.meta.Resource(schema.GroupVersionResource{Group: k.group, Version: version, Resource: k.resource}).Namespace(n.Namespace).Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		home := n.Namespace
		if home == "" {
			home = metav1.NamespaceDefault
		}
		at := metav1.NewTime(now)
		e := &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: n.ID(), Labels: map[string]string{ManagedByLabel: ManagedBy}},
			InvolvedObject: corev1.ObjectReference{Kind: k.kind, APIVersion: schema.GroupVersion{Group: k.group, Version: version}.String(), Namespace: n.Namespace, Name: n.Name,
				UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()},
			Reason: n.Reason, Message: n.Message, Type: corev1.EventTypeWarning, Count: 1, FirstTimestamp: at, LastTimestamp: at,
			Source: corev1.EventSource{Component: ManagedBy}, ReportingController: "isthmus.io/controller", ReportingInstance: c.namespace,
		}
		events := c.core.CoreV1().Events(home)
		_, err = events.Create(ctx, e, metav1.CreateOptions{})
		if !errors.Is(judged(err), ErrStale) {
			return err
		}
		patch, err := json.Marshal(map[string]any{"count": 2, "lastTimestamp": at, "involvedObject": map[string]any{"uid": o.GetUID()}})
		if err != nil {
			return err
		}
		_, err = events.Patch(ctx, e.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}
