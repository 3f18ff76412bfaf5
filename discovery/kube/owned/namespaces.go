package owned

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Namespaces follows which namespaces there are. Safe for concurrent use.
type Namespaces struct {
	client *Client
	wake   chan struct{} // one slot

	mu    sync.Mutex
	known bool
	there map[string]struct{}
}

// Namespaces returns what follows namespaces; run it once.
func (c *Client) Namespaces() *Namespaces {
	return &Namespaces{client: c, wake: make(chan struct{}, 1), there: map[string]struct{}{}}
}

// Changed is signalled when there are others than before.
func (n *Namespaces) Changed() <-chan struct{} { return n.wake }

// Known reports whether all are known.
func (n *Namespaces) Known() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.known
}

// Lacks reports whether there is no such namespace, or one that is on its way out.
func (n *Namespaces) Lacks(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, there := n.there[name]
	return !there
}

// Run follows them until ctx ends.
func (n *Namespaces) Run(ctx context.Context) {
	ctx = quiet(ctx)
	r := n.client.meta.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l, err := r.List(ctx, o)
			n.client.note(ctx, "list namespaces", err)
			return l, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := r.Watch(ctx, o)
			n.client.noteWatch(ctx, "namespaces", err)
			return w, err
		},
	}
	_, c := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw, n.client.meta), ObjectType: &metav1.PartialObjectMetadata{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { n.put(o, false) },
			UpdateFunc: func(_, o any) { n.put(o, false) },
			DeleteFunc: func(o any) { n.put(o, true) },
		},
	})
	go func() {
		select {
		case <-ctx.Done():
		case <-c.HasSyncedChecker().Done():
			n.mu.Lock()
			n.known = true
			n.mu.Unlock()
			n.nudge()
		}
	}()
	c.RunWithContext(ctx)
}

func (n *Namespaces) put(o any, gone bool) {
	if tomb, is := o.(cache.DeletedFinalStateUnknown); is {
		o = tomb.Obj
	}
	m, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return
	}
	n.mu.Lock()
	_, was := n.there[m.Name]
	is := !gone && m.DeletionTimestamp == nil
	if delete(n.there, m.Name); is {
		n.there[m.Name] = struct{}{}
	}
	n.mu.Unlock()
	if is != was {
		n.nudge()
	}
}

func (n *Namespaces) nudge() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}
