package owned

import (
	"context"
	"math"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/isthmus-mesh/isthmus/controller/vip"
)

// group is that of the Multi-Cluster Services API.
const group = "multicluster.x-k8s.io"

// everyKind is about how often the API server is asked whether it has a kind by now.
const everyKind = 30 * time.Second

// follower follows the objects of one kind of the group, while the API server has it. Safe
// for concurrent use.
type follower struct {
	client   *Client
	kind     string
	resource string
	wake     chan struct{} // one slot

	mu      sync.Mutex
	version string // of the group; empty: the API server has no such kind
	asked   bool   // whether it has, is known
	synced  bool
	objects known
}

func (c *Client) follower(kind, resource string) follower {
	return follower{client: c, kind: kind, resource: resource, wake: make(chan struct{}, 1), objects: newKnown()}
}

// Changed is signalled when something else is known than before.
func (f *follower) Changed() <-chan struct{} { return f.wake }

func (f *follower) nudge() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Status says whether all objects are known, and whether the API server has no such kind.
func (f *follower) Status() (synced, absent bool, objects int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.synced, f.asked && f.version == "", len(f.objects.told)
}

// all returns what each object is read as; not ok as long as they are not all known.
func all[T any](f *follower, read func(*unstructured.Unstructured) T) (map[vip.Name]T, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced || f.version == "" {
		return nil, false
	}
	out := make(map[vip.Name]T, len(f.objects.told))
	for n, o := range f.objects.all() {
		out[n] = read(o)
	}
	return out, true
}

// get returns an object as it is known, nil if there is none, and the version of the group.
func (f *follower) get(n vip.Name) (o *unstructured.Unstructured, version string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.objects.get(n), f.version
}

// Run follows the objects until ctx ends.
func (f *follower) Run(ctx context.Context) {
	ctx = quiet(ctx)
	for ctx.Err() == nil {
		version, err := f.client.versionOf(ctx, f.resource)
		if err == nil {
			f.mu.Lock()
			f.version, f.asked = version, true
			f.mu.Unlock()
		}
		pause := everyKind
		switch {
		case err != nil:
			pause /= 10
		case version != "":
			f.follow(ctx, version)
			pause = relistFirst // it may be said to be there for as long as it likes, and is not
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait.Jitter(pause, 1)):
		}
	}
}

// follow follows the objects of a version until there are none of it any more.
func (f *follower) follow(ctx context.Context, version string) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r := f.client.dynamic.Resource(f.at(version))
	judge := func(verb string, err error) {
		f.client.note(ctx, verb+" "+f.resource, err)
		if apierrors.IsNotFound(err) { // perhaps the definition is gone: ask
			stop()
		}
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l, err := r.List(ctx, o)
			judge("list", err)
			return l, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := r.Watch(ctx, o)
			judge("watch", err)
			if err == nil { // no list is missed: this one came behind it, or tells all objects itself
				judge("list", nil)
			}
			return w, err
		},
	}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, f.client.dynamic), &unstructured.Unstructured{}, told{f},
		cache.ReflectorOptions{Backoff: &wait.Backoff{Duration: relistFirst, Cap: relistLimit, Factor: 2, Jitter: 1, Steps: math.MaxInt}}).RunWithContext(ctx)
	f.mu.Lock()
	f.synced = false
	f.mu.Unlock()
}

// Between lists that fail: a right that is given back is used within seconds, and those
// who lost an API server together do not return to it together.
const (
	relistFirst = 800 * time.Millisecond
	relistLimit = 5 * time.Second
)

// change has the objects changed.
func (f *follower) change(by func(k *known)) {
	f.mu.Lock()
	by(&f.objects)
	f.mu.Unlock()
	f.nudge()
}

// told is where a reflector tells a follower what the watch says.
type told struct{ *follower }

func (t told) Add(o any) error    { return t.event(o, false) }
func (t told) Update(o any) error { return t.event(o, false) }
func (t told) Delete(o any) error { return t.event(o, true) }
func (t told) Resync() error      { return nil }

func (t told) event(o any, deleted bool) error {
	if u, ok := o.(*unstructured.Unstructured); ok {
		t.change(func(k *known) { k.tell(u, deleted) })
	}
	return nil
}

// Replace implements [cache.ReflectorStore]: list is all that there is.
func (t told) Replace(list []any, version string) error {
	objects := make([]*unstructured.Unstructured, 0, len(list))
	for _, o := range list {
		if u, ok := o.(*unstructured.Unstructured); ok {
			objects = append(objects, u)
		}
	}
	t.change(func(k *known) {
		k.replace(objects, version)
		t.synced = true
	})
	return nil
}

// UpdateResourceVersion implements [cache.ResourceVersionUpdater]: bookmarks come by it as
// well, and are no news.
func (t told) UpdateResourceVersion(version string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.objects.reach(version)
}

func (f *follower) at(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: f.resource}
}
