// Package pods keeps which pods of a cluster live, where and as whom, for those who must
// know that before they believe a token.
//
// It promises that what it says is that of the last event that it was told. It does not
// follow the API server itself: somebody's informer tells it.
package pods

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Account is a service account.
type Account struct{ Namespace, Name string }

func (a Account) String() string { return a.Namespace + "/" + a.Name }

// Pod is what is kept of one. The zero Pod is none.
type Pod struct {
	UID, Name string
	Account   Account   // its namespace is that of the pod
	Node      string    // empty until it has been scheduled
	over      bool      // its containers have ended for good
	deleted   time.Time // when it is to be gone; zero: not deleted
}

// deletedFor is how long after its grace period a pod that is still there counts as alive,
// as for the API server's own review of tokens.
const deletedFor = time.Minute

// Live reports whether the pod can have containers that run at now.
func (p Pod) Live(now time.Time) bool {
	return p.UID != "" && !p.over && (p.deleted.IsZero() || now.Before(p.deleted.Add(deletedFor)))
}

// Index keeps pods. Make it with NewIndex; safe for concurrent use.
type Index struct {
	keep  func(Account) bool
	known chan struct{} // closed when all pods that there were have been told

	mu     sync.RWMutex
	byName map[[2]string]Pod // by namespace and name
	byUID  map[string][2]string
	onNode map[string]map[[2]string]struct{}
}

// NewIndex returns an index of the pods of those accounts of which keep says so; nil
// keeps all.
func NewIndex(keep func(Account) bool) *Index {
	if keep == nil {
		keep = func(Account) bool { return true }
	}
	return &Index{keep: keep, known: make(chan struct{}), byName: map[[2]string]Pod{}, byUID: map[string][2]string{}, onNode: map[string]map[[2]string]struct{}{}}
}

// Set takes notice of a pod as it is now.
func (x *Index) Set(o *corev1.Pod) {
	p := Pod{UID: string(o.UID), Name: o.Name, Account: Account{o.Namespace, o.Spec.ServiceAccountName}, Node: o.Spec.NodeName,
		over: o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed}
	if p.Account.Name == "" {
		p.Account.Name = "default"
	}
	if o.DeletionTimestamp != nil {
		p.deleted = o.DeletionTimestamp.Time
	}
	k := [2]string{o.Namespace, o.Name}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remove(k)
	if p.UID == "" || !x.keep(p.Account) {
		return
	}
	x.byName[k], x.byUID[p.UID] = p, k
	if x.onNode[p.Node] == nil {
		x.onNode[p.Node] = map[[2]string]struct{}{}
	}
	x.onNode[p.Node][k] = struct{}{}
}

// Remove takes notice that there is no pod of that name.
func (x *Index) Remove(namespace, name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remove([2]string{namespace, name})
}

// remove forgets k; the caller holds mu.
func (x *Index) remove(k [2]string) {
	p, ok := x.byName[k]
	if !ok {
		return
	}
	delete(x.byName, k)
	delete(x.byUID, p.UID)
	if delete(x.onNode[p.Node], k); len(x.onNode[p.Node]) == 0 {
		delete(x.onNode, p.Node)
	}
}

// SetKnown says that all pods that there were when they were first listed have been told;
// more than once is once.
func (x *Index) SetKnown() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.Known() {
		close(x.known)
	}
}

// Known reports whether a pod that is not here is none.
func (x *Index) Known() bool {
	select {
	case <-x.known:
		return true
	default:
		return false
	}
}

// WhenKnown is closed once Known is true.
func (x *Index) WhenKnown() <-chan struct{} { return x.known }

// ByUID returns the pod of a UID; not ok if there is none.
func (x *Index) ByUID(uid string) (Pod, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	k, ok := x.byUID[uid]
	return x.byName[k], ok
}

// Runs reports whether a live pod of the account is on the node.
func (x *Index) Runs(node string, a Account, now time.Time) bool {
	if node == "" {
		return false
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	for k := range x.onNode[node] {
		if p := x.byName[k]; p.Account == a && p.Live(now) {
			return true
		}
	}
	return false
}

// Len is how many pods are kept.
func (x *Index) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.byName)
}

// Handler tells x what an informer of pods hears.
func (x *Index) Handler() cache.ResourceEventHandler {
	set := func(o any) {
		if p, ok := o.(*corev1.Pod); ok {
			x.Set(p)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, o any) { set(o) },
		DeleteFunc: func(o any) {
			key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o)
			if err != nil {
				return
			}
			if ns, n, err := cache.SplitMetaNamespaceKey(key); err == nil {
				x.Remove(ns, n)
			}
		},
	}
}
