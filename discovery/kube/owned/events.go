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
	notices.ConfigMap:     {"ConfigMap", "", "configmaps"},
	notices.Deployment:    {"Deployment", "apps", "deployments"},

	notices.AuthorizationPolicy: {"AuthorizationPolicy", "security.istio.io", "authorizationpolicies"},
	notices.PeerAuthentication:  {"PeerAuthentication", "security.istio.io", "peerauthentications"},
}

// Tell writes an Event at its object, so that `kubectl describe` shows it there. One that
// was told before is counted up. It fails with ErrGone if there is no such object.
func (c *Client) Tell(ctx context.Context, n notices.Notice, now time.Time) error {
	k, ok := kinds[n.Kind]
	if !ok {
		return fmt.Errorf("event at %s: no such kind", n.Object)
	}
	version := "v1"
	if k.group == group { // whose version is that of what is installed
		var err error
		if version, err = c.versionOf(ctx, k.resource); err != nil {
			return err
		} else if version == "" {
			return ErrGone
		}
	}
	var o *metav1.PartialObjectMetadata
	err := c.once(ctx, "get "+k.resource+" to write events at", func(ctx context.Context) (err error) {
		o, err = c.meta.Resource(schema.GroupVersionResource{Group: k.group, Version: version, Resource: k.resource}).Namespace(n.Namespace).Get(ctx, n.Name, metav1.GetOptions{})
		return err
	})
	if errors.Is(err, ErrNoRight) {
		return fmt.Errorf("%w: get %s %s: %s", ErrDenied, k.kind, n.Object, err) // others are of other kinds
	} else if err != nil {
		return err
	}
	return c.once(ctx, writeEvents, func(ctx context.Context) error {
		at := metav1.NewTime(now)
		e := &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: homeOf(n), Name: n.ID(), Labels: map[string]string{ManagedByLabel: ManagedBy}},
			InvolvedObject: corev1.ObjectReference{Kind: k.kind, APIVersion: schema.GroupVersion{Group: k.group, Version: version}.String(), Namespace: n.Namespace, Name: n.Name,
				UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()},
			Reason: n.Reason, Message: n.Message, Type: corev1.EventTypeWarning, Count: 1, FirstTimestamp: at, LastTimestamp: at,
			Source: corev1.EventSource{Component: ManagedBy}, ReportingController: "isthmus.io/controller", ReportingInstance: c.namespace,
		}
		_, err := c.core.CoreV1().Events(homeOf(n)).Create(ctx, e, metav1.CreateOptions{})
		if !errors.Is(judged(err), ErrStale) {
			return err
		}
		return c.patchEvent(ctx, n, map[string]any{"count": 2, "lastTimestamp": at, "type": e.Type, "message": e.Message, "involvedObject": map[string]any{"uid": o.GetUID()}})
	})
}

// writeEvents is what Failing calls it.
const writeEvents = "write events"

// ended goes before the text of a notice that stands no more.
const ended = "no longer so: "

// TakeBack says in the Event of n that what it says is no longer so: it becomes a Normal one.
// It fails with ErrGone if there is no such Event.
func (c *Client) TakeBack(ctx context.Context, n notices.Notice, now time.Time) error {
	return c.once(ctx, writeEvents, func(ctx context.Context) error {
		return c.patchEvent(ctx, n, map[string]any{"type": corev1.EventTypeNormal, "message": ended + n.Message, "lastTimestamp": metav1.NewTime(now)})
	})
}

func (c *Client) patchEvent(ctx context.Context, n notices.Notice, change map[string]any) error {
	patch, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = c.core.CoreV1().Events(homeOf(n)).Patch(ctx, n.ID(), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// homeOf is the namespace of the Event of n.
func homeOf(n notices.Notice) string {
	if n.Namespace == "" {
		return metav1.NamespaceDefault
	}
	return n.Namespace
}
