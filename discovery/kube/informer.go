package kube

import (
	"context"
	"reflect"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// quiet keeps client-go from writing to stderr what list says in the log.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, logr.Discard()) }

// informer follows one kind of objects, but for ServiceExports.
func (s *Source) informer(k Kind) (store cache.Store, c cache.Controller) {
	core, all := s.client.CoreV1(), metav1.NamespaceAll
	switch k {
	case Namespaces:
		store, c = follow(s, k, &corev1.Namespace{}, core.Namespaces().List, core.Namespaces().Watch, s.client)
	case Nodes:
		store, c = follow(s, k, &corev1.Node{}, core.Nodes().List, core.Nodes().Watch, s.client)
	case Services:
		store, c = follow(s, k, &corev1.Service{}, core.Services(all).List, core.Services(all).Watch, s.client)
	case EndpointSlices:
		store, c = follow(s, k, &discoveryv1.EndpointSlice{}, s.client.DiscoveryV1().EndpointSlices(all).List, s.client.DiscoveryV1().EndpointSlices(all).Watch, s.client)
	case Pods:
		store, c = follow(s, k, &corev1.Pod{}, core.Pods(all).List, core.Pods(all).Watch, s.client)
	}
	return store, c
}

// follow makes an informer that tells s what becomes of objects, and whether the API
// server answers.
func follow[L runtime.Object](s *Source, k Kind, example runtime.Object, list func(context.Context, metav1.ListOptions) (L, error), watching func(context.Context, metav1.ListOptions) (watch.Interface, error), client any) (cache.Store, cache.Controller) {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l, err := list(ctx, o)
			if err != nil {
				s.failed(k, err)
				return nil, err
			}
			return l, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := watching(ctx, o)
			if err != nil {
				s.failed(k, err)
				return nil, err
			}
			s.answered(k)
			return &watched{Interface: w, ended: func() { s.ended(k) }}, nil
		},
	}
	store, c := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw, client), ObjectType: example, Transform: func(o any) (any, error) { return s.keep(k, o) }, Logger: new(logr.Discard()),
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { s.noteObject(k, o, false) },
			UpdateFunc: func(_, o any) { s.noteObject(k, o, false) },
			DeleteFunc: func(o any) { s.noteObject(k, o, true) },
		},
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followed[k] = c
	return store, c
}

// keep returns what is kept of an object: of one that is as it is known, what is known, so that a list
// that is read anew is not in memory twice, and nobody looks at it again. That its resourceVersion is
// the same would not say so: the API server may have gone backwards in between.
func (s *Source) keep(k Kind, o any) (any, error) {
	kept, err := trim(o)
	m, none := meta.Accessor(kept)
	if err != nil || none != nil {
		return kept, err
	}
	s.mu.Lock()
	was := s.lists[k].objects[Event{Kind: k, Namespace: m.GetNamespace(), Name: m.GetName()}].object
	s.mu.Unlock()
	if was != nil && reflect.DeepEqual(was, kept) {
		return was, nil
	}
	return kept, nil
}

func (s *Source) noteObject(k Kind, o any, gone bool) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o)
	if err != nil {
		return // of no type that was asked for
	}
	e := Event{Kind: k}
	if e.Namespace, e.Name, err = cache.SplitMetaNamespaceKey(key); err != nil {
		return
	}
	_, missing := o.(cache.DeletedFinalStateUnknown)
	switch {
	case missing: // nobody has said that it was deleted: a list that was read anew lacks it
		s.miss(e)
	case gone:
		s.mu.Lock()
		s.lists[k].hear(o)
		s.put(e, nil)
		s.mu.Unlock()
		s.poke()
	default:
		s.note(e, o)
	}
}

// watched is a watch that says when it is over.
type watched struct {
	watch.Interface
	ended func()
}

// Stop implements watch.Interface; a reflector calls it once for each watch.
func (w *watched) Stop() {
	w.ended()
	w.Interface.Stop()
}
