package kube

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"
)

// optional is a kind that is no part of Kubernetes itself: an API server may have it or not.
type optional struct {
	kind     Kind
	group    string
	versions []string      // the first that there is counts
	every    time.Duration // about how often the API server is asked whether it has the kind by now
}

// optionals are all of them. Policies are asked for more often: without them too much is allowed.
var optionals = []optional{
	{ServiceExports, "multicluster.x-k8s.io", []string{"v1beta1", "v1alpha1"}, 30 * time.Second},
	{AuthorizationPolicies, "security.istio.io", []string{"v1", "v1beta1"}, 5 * time.Second},
	{PeerAuthentications, "security.istio.io", []string{"v1", "v1beta1"}, 5 * time.Second},
}

// followOptional follows the objects of a kind while the API server has it. known is closed when
// it is clear whether there are any.
func (s *Source) followOptional(ctx context.Context, o optional, known chan struct{}) {
	clear := func() {
		select {
		case <-known:
		default:
			close(known)
		}
	}
	for ctx.Err() == nil {
		version, err := s.versionOf(ctx, o)
		pause := o.every
		switch {
		case err != nil:
			s.failed(o.kind, err)
			pause = min(pause, 3*time.Second)
		case version == "":
			s.absent(o.kind)
			s.withdraw(o.kind, nil, false)
			s.whole(o.kind)
			clear()
		default:
			s.optional(ctx, o, version, clear)
			pause = time.Second // they may be said to be there for as long as it likes, and are not
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait.Jitter(pause, 1)):
		}
	}
}

// whole notes that all objects of an optional kind are known.
func (s *Source) whole(k Kind) {
	s.mu.Lock()
	s.policed[k] = true
	if l := &s.lists[k]; s.followed[k] != nil && !l.none { // what its watch has told since the list was read is noted within moments
		l.heard = max(l.heard, parseVersion(s.followed[k].LastSyncResourceVersion()))
	}
	s.mu.Unlock()
	s.poke()
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

// versionOf returns the version that objects of a kind are asked for, empty if there is none.
func (s *Source) versionOf(ctx context.Context, o optional) (string, error) {
	for _, version := range o.versions {
		l, err := Resources(ctx, s.client.Discovery(), o.group+"/"+version)
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return "", err
		}
		for _, r := range l.APIResources {
			if r.Name == o.kind.String() {
				return version, nil
			}
		}
	}
	return "", nil
}

// optional follows objects of a version until there are none of it any more.
func (s *Source) optional(ctx context.Context, o optional, version string, known func()) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	at := schema.GroupVersionResource{Group: o.group, Version: version, Resource: o.kind.String()}
	judge := func(err error) {
		switch {
		case apierrors.IsNotFound(err): // perhaps the definition is gone, and with it all objects: ask
			stop()
		case apierrors.IsForbidden(err): // said in the log: everything else goes on
			known()
		}
	}
	var store cache.Store
	var c cache.Controller
	if o.kind == ServiceExports {
		r := s.meta.Resource(at)
		store, c = follow(s, o.kind, &metav1.PartialObjectMetadata{}, judged(r.List, judge), judged(r.Watch, judge), s.meta)
	} else {
		r := s.clients.whole.Resource(at)
		store, c = follow(s, o.kind, &unstructured.Unstructured{}, judged(r.List, judge), judged(r.Watch, judge), s.clients.whole)
	}
	go func() {
		select {
		case <-ctx.Done():
		case <-c.HasSyncedChecker().Done():
			s.withdraw(o.kind, store, false) // what went between the last informer and this one
			s.whole(o.kind)
			known()
		}
	}()
	c.RunWithContext(ctx)
}

// judged has judge see each error of ask.
func judged[T any](ask func(context.Context, metav1.ListOptions) (T, error), judge func(error)) func(context.Context, metav1.ListOptions) (T, error) {
	return func(ctx context.Context, o metav1.ListOptions) (T, error) {
		out, err := ask(ctx, o)
		judge(err)
		return out, err
	}
}
