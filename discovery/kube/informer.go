package kube

import (
	"context"
	"reflect"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
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
		s.note(e, nil)
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

// exportsEvery is about how often the API server is asked whether it has ServiceExports
// by now.
const exportsEvery = 30 * time.Second

const exportsGroup = "multicluster.x-k8s.io"

// followExports follows ServiceExports while the API server has them, which are no part
// of Kubernetes itself. known is closed when it is clear whether there are any.
func (s *Source) followExports(ctx context.Context, known chan struct{}) {
	clear := func() {
		select {
		case <-known:
		default:
			close(known)
		}
	}
	for ctx.Err() == nil {
		version, err := s.exportsVersion(ctx)
		pause := exportsEvery
		switch {
		case err != nil:
			s.failed(ServiceExports, err)
			pause /= 10
		case version == "":
			s.absent(ServiceExports)
			s.withdraw(ServiceExports, nil, false)
			clear()
		default:
			s.exports(ctx, version, clear)
			pause = time.Second // they may be said to be there for as long as it likes, and are not
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait.Jitter(pause, 1)):
		}
	}
}

// resourcesTime bounds the question which resources there are.
const resourcesTime = 10 * time.Second

// Resources returns what an API server has of a version of a group. That of client-go knows no
// context, nor an end: an API server that says nothing would be waited for as long as that.
func Resources(ctx context.Context, d discovery.DiscoveryInterface, groupVersion string) (*metav1.APIResourceList, error) {
	c := d.RESTClient()
	if c == nil { // a made-up one, which answers at once
		return d.ServerResourcesForGroupVersion(groupVersion)
	}
	ctx, cancel := context.WithTimeout(ctx, resourcesTime)
	defer cancel()
	out := &metav1.APIResourceList{}
	if err := c.Get().AbsPath("/apis/" + groupVersion).Do(ctx).Into(out); err != nil {
		return nil, err
	}
	return out, nil
}

// exportsVersion returns the version that ServiceExports are asked for, empty if there is
// none.
func (s *Source) exportsVersion(ctx context.Context) (string, error) {
	for _, version := range []string{"v1beta1", "v1alpha1"} {
		l, err := Resources(ctx, s.client.Discovery(), exportsGroup+"/"+version)
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return "", err
		}
		for _, r := range l.APIResources {
			if r.Name == ServiceExports.String() {
				return version, nil
			}
		}
	}
	return "", nil
}

// exports follows ServiceExports of a version until there are none of it any more.
func (s *Source) exports(ctx context.Context, version string, known func()) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r := s.meta.Resource(schema.GroupVersionResource{Group: exportsGroup, Version: version, Resource: ServiceExports.String()})
	judge := func(err error) {
		switch {
		case apierrors.IsNotFound(err): // perhaps the definition is gone, and with it all objects: ask
			stop()
		case apierrors.IsForbidden(err): // said in the log: what is global by labels goes on
			known()
		}
	}
	list := func(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
		l, err := r.List(ctx, o)
		judge(err)
		return l, err
	}
	watching := func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := r.Watch(ctx, o)
		judge(err)
		return w, err
	}
	store, c := follow(s, ServiceExports, &metav1.PartialObjectMetadata{}, list, watching, s.meta)
	go func() {
		select {
		case <-ctx.Done():
		case <-c.HasSyncedChecker().Done():
			s.withdraw(ServiceExports, store, false) // what went between the last informer and this one
			known()
		}
	}()
	c.RunWithContext(ctx)
}
