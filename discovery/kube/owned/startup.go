package owned

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Startup follows the nodes that have a taint, and the pods of one service account, of
// which one on the node has to be ready before the taint is removed. Safe for concurrent
// use.
type Startup struct {
	client             *Client
	taint              string
	namespace, account string
	wake               chan struct{} // one slot

	mu    sync.Mutex
	nodes map[string]*corev1.Node // that have the taint, with nothing but what is used
	pods  map[string]*corev1.Pod  // likewise, that are ready
}

// Startup returns what follows the nodes with a taint of this key; run it once.
func (c *Client) Startup(taint, namespace, account string) *Startup {
	return &Startup{client: c, taint: taint, namespace: namespace, account: account, wake: make(chan struct{}, 1), nodes: map[string]*corev1.Node{}, pods: map[string]*corev1.Pod{}}
}

// CheckTaint says what is wrong with the key of a taint.
func CheckTaint(key string) error {
	if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
		return fmt.Errorf("%q is not the key of a taint: %s", key, strings.Join(wrong, "; "))
	}
	return nil
}

// Changed is signalled when there may be something else to do.
func (s *Startup) Changed() <-chan struct{} { return s.wake }

// Ready returns the nodes that have the taint and a ready pod, sorted. A pod that was
// created before its node is of a node of that name before.
func (s *Startup) Ready() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		n := s.nodes[p.Spec.NodeName]
		if n != nil && !p.CreationTimestamp.Before(&n.CreationTimestamp) {
			out = append(out, n.Name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Remove takes the taint from a node, and changes nothing else of it. It fails with
// ErrStale if the node has changed since it was told.
func (s *Startup) Remove(ctx context.Context, node string) error {
	s.mu.Lock()
	n := s.nodes[node]
	s.mu.Unlock()
	if n == nil {
		return fmt.Errorf("node %s: %w", node, ErrGone)
	}
	rest := slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t corev1.Taint) bool { return t.Key == s.taint })
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion}, "spec": map[string]any{"taints": rest}})
	if err != nil {
		return err
	}
	return s.client.once(ctx, "patch nodes", func(ctx context.Context) error {
		_, err := s.client.core.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// Run follows nodes and pods until ctx ends.
func (s *Startup) Run(ctx context.Context) {
	ctx = quiet(ctx)
	nodes, pods := s.client.core.CoreV1().Nodes(), s.client.core.CoreV1().Pods(s.namespace)
	selector := fields.OneTermEqualSelector("spec.serviceAccountName", s.account).String()
	var both sync.WaitGroup
	both.Go(func() {
		s.follow(ctx, &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				l, err := nodes.List(ctx, o)
				s.client.note(ctx, "list nodes", err)
				return l, err
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return nodes.Watch(ctx, o) },
		}, &corev1.Node{})
	})
	both.Go(func() {
		s.follow(ctx, &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = selector
				l, err := pods.List(ctx, o)
				s.client.note(ctx, "list pods of "+s.namespace, err)
				return l, err
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = selector
				return pods.Watch(ctx, o)
			},
		}, &corev1.Pod{})
	})
	both.Wait()
}

func (s *Startup) follow(ctx context.Context, lw *cache.ListWatch, kind runtime.Object) {
	_, c := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw, s.client.core), ObjectType: kind, Transform: trimStartup,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { s.put(o, false) },
			UpdateFunc: func(_, o any) { s.put(o, false) },
			DeleteFunc: func(o any) {
				if tomb, is := o.(cache.DeletedFinalStateUnknown); is {
					o = tomb.Obj
				}
				s.put(o, true)
			},
		},
	})
	c.RunWithContext(ctx)
}

// trimStartup drops what is not used.
func trimStartup(o any) (any, error) {
	meta := func(m metav1.ObjectMeta) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp}
	}
	switch o := o.(type) {
	case *corev1.Node:
		return &corev1.Node{ObjectMeta: meta(o.ObjectMeta), Spec: corev1.NodeSpec{Taints: o.Spec.Taints}}, nil
	case *corev1.Pod:
		return &corev1.Pod{ObjectMeta: meta(o.ObjectMeta), Spec: corev1.PodSpec{NodeName: o.Spec.NodeName}, Status: corev1.PodStatus{Conditions: o.Status.Conditions}}, nil
	}
	return o, nil
}

func (s *Startup) put(o any, gone bool) {
	s.mu.Lock()
	switch o := o.(type) {
	case *corev1.Node:
		if delete(s.nodes, o.Name); !gone && slices.ContainsFunc(o.Spec.Taints, func(t corev1.Taint) bool { return t.Key == s.taint }) {
			s.nodes[o.Name] = o
		}
	case *corev1.Pod:
		ready := slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if delete(s.pods, o.Name); !gone && ready && o.DeletionTimestamp == nil {
			s.pods[o.Name] = o
		}
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
