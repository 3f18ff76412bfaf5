package owned

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

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
	nodes map[string]tainted     // that have the taint
	pods  map[string]*corev1.Pod // likewise, that are ready
}

// tainted is a node with the taint.
type tainted struct {
	*corev1.Node           // with nothing but what is used
	since        time.Time // when it was told first
}

// olderFor is how long a pod that is older than its node has to stay ready beside it to count. The node
// may be another machine under the name of one that is gone: its kubelet says within seconds that such a
// pod is not ready yet, and the pods of nodes that are gone are deleted after 40 s. Or it is the same one,
// registered anew with the taint, where the pod has run on all the while and nothing of it will change.
const olderFor = time.Minute

// Startup returns what follows the nodes with a taint of this key; run it once.
func (c *Client) Startup(taint, namespace, account string) *Startup {
	return &Startup{client: c, taint: taint, namespace: namespace, account: account, wake: make(chan struct{}, 1), nodes: map[string]tainted{}, pods: map[string]*corev1.Pod{}}
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

// Ready returns the nodes that have the taint and a ready pod, sorted, and when to ask again if no
// Changed says so before; 0: never. A pod that was ready before its node was created may be of a node of
// that name before, and counts after olderFor.
func (s *Startup) Ready(now time.Time) (out []string, again time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		n, has := s.nodes[p.Spec.NodeName]
		if !has {
			continue
		}
		older := p.CreationTimestamp.Before(&n.CreationTimestamp) && readySince(p).Before(&n.CreationTimestamp)
		if left := olderFor - now.Sub(n.since); older && left > 0 {
			if again == 0 || left < again {
				again = left
			}
			continue
		}
		out = append(out, n.Name)
	}
	slices.Sort(out)
	return slices.Compact(out), again
}

// readySince is when a pod has become ready; nil: it is not.
func readySince(p *corev1.Pod) *metav1.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return &c.LastTransitionTime
		}
	}
	return nil
}

// Remove takes the taint from a node, and changes nothing else of it. It fails with
// ErrStale if the node has changed since it was told.
func (s *Startup) Remove(ctx context.Context, node string) error {
	s.mu.Lock()
	n := s.nodes[node]
	s.mu.Unlock()
	if n.Node == nil {
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
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				w, err := nodes.Watch(ctx, o)
				s.client.noteWatch(ctx, "nodes", err)
				return w, err
			},
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
				w, err := pods.Watch(ctx, o)
				s.client.noteWatch(ctx, "pods of "+s.namespace, err)
				return w, err
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
		was := s.nodes[o.Name]
		if delete(s.nodes, o.Name); !gone && slices.ContainsFunc(o.Spec.Taints, func(t corev1.Taint) bool { return t.Key == s.taint }) {
			since := time.Now()
			if was.Node != nil && was.UID == o.UID {
				since = was.since
			}
			s.nodes[o.Name] = tainted{o, since}
		}
	case *corev1.Pod:
		if delete(s.pods, o.Name); !gone && readySince(o) != nil && o.DeletionTimestamp == nil {
			s.pods[o.Name] = o
		}
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
