package kube

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// name is that of an object in its namespace, which is empty for what has none.
type name struct{ namespace, name string }

func (n name) String() string {
	if n.namespace == "" {
		return n.name
	}
	return n.namespace + "/" + n.name
}

func (n name) compare(o name) int {
	return cmp.Or(cmp.Compare(n.namespace, o.namespace), cmp.Compare(n.name, o.name))
}

// Kind is which list of the API server an object is in.
type Kind uint8

// The kinds, by what the API server calls their lists.
const (
	Namespaces Kind = iota
	Nodes
	Services
	EndpointSlices
	Pods
	ServiceExports
	AuthorizationPolicies
	PeerAuthentications
	kinds
)

func (k Kind) String() string {
	return [...]string{"namespaces", "nodes", "services", "endpointslices", "pods", "serviceexports", "authorizationpolicies", "peerauthentications"}[k]
}

// Event says that an object is as it is now.
type Event struct {
	Kind            Kind
	Namespace, Name string // Namespace is empty for nodes and namespaces
	// Object is a pointer to the type of corev1 or discoveryv1 that Kind is a list of;
	// a *metav1.PartialObjectMetadata for ServiceExports (anything else is one of unknown age), and what keepPolicy
	// returns for policies. Nil if the object was deleted. The object must not be changed afterwards.
	Object any
}

// Cluster keeps the objects of a cluster and says which records of discovery come of
// them. What a change costs is in proportion to what depends on it. Not safe for
// concurrent use.
type Cluster struct {
	network string
	system  string // the namespace that says which network this is
	front   front

	namespaces map[string]*corev1.Namespace
	nodes      map[string]*corev1.Node
	services   map[name]*corev1.Service
	slices     map[name]*discoveryv1.EndpointSlice
	pods       map[name]*keptPod
	exports    map[name]*metav1.PartialObjectMetadata
	policies   policies

	inService   index[name]          // slices, by their service
	aboutPod    index[name]          // slices, by the pods that they list
	onNode      index[string]        // pods
	podsOf      index[string]        // by namespace
	servicesOf  index[string]        // by namespace
	described   map[name]description // services that have a record
	staleSpaces map[string]struct{}
	staleNames  map[name]struct{} // services
	stalePods   map[name]struct{}
}

// NewCluster returns a Cluster without objects, on the network.
func NewCluster(network, systemNamespace string) *Cluster {
	return &Cluster{
		network: network, system: systemNamespace,
		namespaces: map[string]*corev1.Namespace{}, nodes: map[string]*corev1.Node{}, services: map[name]*corev1.Service{},
		slices: map[name]*discoveryv1.EndpointSlice{}, pods: map[name]*keptPod{}, exports: map[name]*metav1.PartialObjectMetadata{}, policies: newPolicies(),
		inService: index[name]{}, aboutPod: index[name]{}, onNode: index[string]{}, podsOf: index[string]{}, servicesOf: index[string]{}, described: map[name]description{},
		staleSpaces: map[string]struct{}{}, staleNames: map[name]struct{}{}, stalePods: map[name]struct{}{},
	}
}

// Apply takes in events and returns what they change, each record once. Some of it may be
// as it was.
func (c *Cluster) Apply(events ...Event) []discovery.Change {
	gateways := false
	for _, e := range events {
		gateways = gateways || c.affectsGateways(e)
		n := name{e.Namespace, e.Name}
		if c.has(e, n) {
			continue
		}
		switch e.Kind {
		case Namespaces:
			c.setNamespace(e.Name, object[corev1.Namespace](e))
		case Nodes:
			c.setNode(e.Name, object[corev1.Node](e))
		case Services:
			c.setService(n, object[corev1.Service](e))
		case EndpointSlices:
			c.setSlice(n, object[discoveryv1.EndpointSlice](e))
		case Pods:
			c.setPod(n, podIn(e))
		case ServiceExports:
			set(c.exports, n, exportIn(e))
			c.staleNames[n] = struct{}{}
		case AuthorizationPolicies, PeerAuthentications:
			c.setPolicy(policyName{e.Kind, n}, object[keptPolicy](e))
		}
	}
	if gateways {
		return append(c.readGateways(), c.translate()...)
	}
	return c.translate()
}

// has reports whether what e says is what was said last, in the very same object.
func (c *Cluster) has(e Event, n name) bool {
	switch o := e.Object.(type) {
	case *corev1.Namespace:
		return o == c.namespaces[e.Name]
	case *corev1.Node:
		return o == c.nodes[e.Name]
	case *corev1.Service:
		return o == c.services[n]
	case *discoveryv1.EndpointSlice:
		return o == c.slices[n]
	case *keptPod:
		return o == c.pods[n]
	case *metav1.PartialObjectMetadata:
		return o == c.exports[n]
	case *keptPolicy:
		return o == c.policies.all[policyName{e.Kind, n}]
	}
	return false
}

// Objects returns all that the cluster has now. They are not to be changed.
func (c *Cluster) Objects() []Event {
	out := make([]Event, 0, len(c.namespaces)+len(c.nodes)+len(c.services)+len(c.slices)+len(c.pods)+len(c.exports)+len(c.policies.all))
	for n, o := range c.namespaces {
		out = append(out, Event{Namespaces, "", n, o})
	}
	for n, o := range c.nodes {
		out = append(out, Event{Nodes, "", n, o})
	}
	for n, o := range c.services {
		out = append(out, Event{Services, n.namespace, n.name, o})
	}
	for n, o := range c.slices {
		out = append(out, Event{EndpointSlices, n.namespace, n.name, o})
	}
	for n, o := range c.pods {
		out = append(out, Event{Pods, n.namespace, n.name, o})
	}
	for n, o := range c.exports {
		out = append(out, Event{ServiceExports, n.namespace, n.name, o})
	}
	for n, o := range c.policies.all {
		out = append(out, Event{n.kind, n.namespace, n.name.name, o})
	}
	return out
}

// uid names the cluster as Kubernetes users do; empty if it is not known.
func (c *Cluster) uid() string {
	if ns := c.namespaces[metav1.NamespaceSystem]; ns != nil {
		return string(ns.UID)
	}
	return ""
}

// address is that of a pod; empty if it has none.
func (c *Cluster) address(pod name) string {
	if p := c.pods[pod]; p != nil {
		return p.Status.PodIP
	}
	return ""
}

// needs reports whether something would be lost with an object that a list lacks: a pod that can
// be asked, a service, what is known of a service, or the last word that a pod that is known is
// its member, runs on a node or belongs to a namespace.
func (c *Cluster) needs(k Kind, n name, missing func(Kind, name) bool) bool {
	switch k {
	case Pods:
		p := c.pods[n]
		return p != nil && p.Status.PodIP != "" && !p.Spec.HostNetwork // who answers at a node's address is somebody else
	case EndpointSlices:
		s := c.slices[n]
		return s != nil && slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return c.lastOf(s, podOf(s, &e), missing) })
	case ServiceExports:
		return c.services[n] != nil
	case Nodes:
		return len(c.onNode[n.name]) > 0
	case Namespaces:
		return len(c.podsOf[n.name])+len(c.servicesOf[n.name]) > 0
	}
	return true
}

// lastOf reports whether no slice that is there says what s does: that a pod is a member of
// its service.
func (c *Cluster) lastOf(s *discoveryv1.EndpointSlice, pod name, missing func(Kind, name) bool) bool {
	if c.pods[pod] == nil {
		return false
	}
	for other := range c.aboutPod[pod] {
		if serviceOf(c.slices[other]) == serviceOf(s) && !missing(EndpointSlices, other) {
			return false
		}
	}
	return true
}

// object returns that of e, nil if it is of another type.
func object[T any](e Event) *T {
	o, _ := e.Object.(*T)
	return o
}

// exportIn returns the ServiceExport of e.
func exportIn(e Event) *metav1.PartialObjectMetadata {
	if o := object[metav1.PartialObjectMetadata](e); o != nil || e.Object == nil {
		return o
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name}}
}

// set makes m[k] be v, or nothing if v is nil.
func set[K comparable, V any](m map[K]*V, k K, v *V) {
	if v == nil {
		delete(m, k)
	} else {
		m[k] = v
	}
}

func (c *Cluster) setNamespace(n string, now *corev1.Namespace) {
	was := c.segmented()
	if set(c.namespaces, n, now); c.segmented() != was {
		for s := range c.services {
			c.staleNames[s] = struct{}{}
		}
		for s := range c.namespaces {
			c.staleSpaces[s] = struct{}{}
		}
	}
	c.staleSpaces[n] = struct{}{}
	maps.Copy(c.staleNames, c.servicesOf[n])
	maps.Copy(c.stalePods, c.podsOf[n])
}

// segmented reports whether the system namespace names a segment.
func (c *Cluster) segmented() bool {
	ns := c.namespaces[c.system]
	return ns != nil && ns.Labels[labelSegment] != ""
}

func (c *Cluster) setNode(n string, now *corev1.Node) {
	set(c.nodes, n, now)
	maps.Copy(c.stalePods, c.onNode[n])
}

func (c *Cluster) setService(n name, now *corev1.Service) {
	set(c.services, n, now)
	if now == nil {
		c.servicesOf.remove(n.namespace, n)
	} else {
		c.servicesOf.add(n.namespace, n)
	}
	c.staleNames[n] = struct{}{}
}

func (c *Cluster) setPod(n name, now *keptPod) {
	if old := c.pods[n]; old != nil {
		c.onNode.remove(old.Spec.NodeName, n)
	}
	was := c.placeOf(n)
	if set(c.pods, n, now); c.placeOf(n) != was {
		for slice := range c.aboutPod[n] {
			c.staleNames[serviceOf(c.slices[slice])] = struct{}{}
		}
	}
	if now == nil {
		if c.podsOf.remove(n.namespace, n); len(c.pods) == 0 {
			clear(c.policies.seen)
		}
	} else {
		c.podsOf.add(n.namespace, n)
		c.onNode.add(now.Spec.NodeName, n)
	}
	c.stalePods[n] = struct{}{}
}

func (c *Cluster) setSlice(n name, now *discoveryv1.EndpointSlice) {
	if old := c.slices[n]; old != nil {
		svc := serviceOf(old)
		c.inService.remove(svc, n)
		c.staleNames[svc] = struct{}{}
		for i := range old.Endpoints {
			p := podOf(old, &old.Endpoints[i])
			c.aboutPod.remove(p, n)
			c.stalePods[p] = struct{}{}
		}
	}
	set(c.slices, n, now)
	if now == nil {
		return
	}
	svc := serviceOf(now)
	c.inService.add(svc, n)
	c.staleNames[svc] = struct{}{}
	for i := range now.Endpoints {
		p := podOf(now, &now.Endpoints[i])
		if p != (name{}) {
			c.aboutPod.add(p, n)
		}
		c.stalePods[p] = struct{}{}
	}
}

// placeOf returns where a pod is.
func (c *Cluster) placeOf(n name) place {
	return pod{object: c.pods[n], namespace: c.namespaces[n.namespace]}.place()
}

// endpointsOf returns where the endpoints of slices are. An endpoint whose pod is not known is nowhere.
func (c *Cluster) endpointsOf(of []*discoveryv1.EndpointSlice) (out endpoints) {
	for _, slice := range of {
		for i := range slice.Endpoints {
			n := podOf(slice, &slice.Endpoints[i])
			at := placeNode
			if n != (name{}) {
				at = c.placeOf(n)
			}
			if at == placeMesh {
				return endpoints{inside: true}
			}
			out.outside = out.outside || at != placeUnknown
			out.plain = out.plain || at == placePlain
		}
	}
	return out
}

// serviceOf returns the service of a slice; one of no service has the name of none.
func serviceOf(s *discoveryv1.EndpointSlice) name {
	return name{s.Namespace, s.Labels[labelOfSlice]}
}

// translate reads again what depends on what has changed: namespaces, then services, and
// then pods, which also depend on services.
func (c *Cluster) translate() []discovery.Change {
	out := make([]discovery.Change, 0, len(c.staleSpaces)+len(c.staleNames)+len(c.stalePods))
	for _, n := range slices.Sorted(maps.Keys(c.staleSpaces)) {
		out = append(out, c.readNamespace(n))
	}
	for _, n := range slices.SortedFunc(maps.Keys(c.staleNames), name.compare) {
		out = append(out, c.readService(n))
	}
	delete(c.stalePods, name{}) // of endpoints that are no pods
	for _, n := range slices.SortedFunc(maps.Keys(c.stalePods), name.compare) {
		out = append(out, c.readPod(n))
	}
	out = append(out, c.policies.translate()...)
	clear(c.staleSpaces)
	clear(c.staleNames)
	clear(c.stalePods)
	return out
}

func key(kind discovery.Kind, n name) discovery.Key {
	return discovery.Key{Kind: kind, Source: discovery.Cluster, Name: n.String()}
}

func (c *Cluster) readNamespace(n string) discovery.Change {
	ns := namespace{object: c.namespaces[n], segmented: c.segmented()}
	if n == c.system {
		ns.network = c.network
	}
	return discovery.Change{Key: key(discovery.KindNamespace, name{name: n}), Faults: ns.read()}
}

func (c *Cluster) readService(n name) discovery.Change {
	s := service{name: n, object: c.services[n], export: c.exports[n], namespace: c.namespaces[n.namespace], segmented: c.segmented()}
	for _, slice := range slices.SortedFunc(maps.Keys(c.inService[n]), name.compare) {
		s.slices = append(s.slices, c.slices[slice])
	}
	s.endpoints = c.endpointsOf(s.slices)
	ch := discovery.Change{Key: key(discovery.KindService, n)}
	r, f := s.read()
	ch.Faults = f
	was, had := c.described[n]
	if delete(c.described, n); r != nil {
		ch.Record, c.described[n] = *r, describe(r)
	}
	if is, has := c.described[n]; has != had || !is.equal(was) {
		for _, slice := range s.slices {
			for i := range slice.Endpoints {
				c.stalePods[podOf(slice, &slice.Endpoints[i])] = struct{}{}
			}
		}
	}
	return ch
}

func (c *Cluster) readPod(n name) discovery.Change {
	p := pod{object: c.pods[n], namespace: c.namespaces[n.namespace], network: c.network, members: c.membersOf(n)}
	if p.object != nil {
		p.node = c.nodes[p.object.Spec.NodeName]
		p.labels = c.policies.labels(p.object.Labels)
	}
	ch := discovery.Change{Key: key(discovery.KindWorkload, n)}
	r, f := p.read()
	if ch.Faults = f; r != nil {
		ch.Record = *r
	}
	return ch
}

// membersOf returns the memberships of a pod by service, from all slices that list it in the order
// of their names.
func (c *Cluster) membersOf(n name) (out []membership) {
	first, _ := netip.ParseAddr(c.address(n))
	for _, slice := range slices.SortedFunc(maps.Keys(c.aboutPod[n]), name.compare) {
		s := c.slices[slice]
		svc := serviceOf(s)
		d, is := c.described[svc]
		if !is {
			continue
		}
		i := slices.IndexFunc(out, func(m membership) bool { return m.service == svc })
		if i < 0 {
			i = len(out)
			out = append(out, membership{service: svc, description: d})
		}
		for j := range s.Endpoints {
			if e := &s.Endpoints[j]; podOf(s, e) == n && sameLife(e, c.pods[n]) {
				out[i].add(s, e.Conditions, first.Unmap())
			}
		}
	}
	slices.SortFunc(out, func(a, b membership) int { return cmp.Compare(hostnameOf(a.service), hostnameOf(b.service)) })
	return out
}

// sameLife reports whether an endpoint is about this pod, and not about one of its name
// that was there before.
func sameLife(e *discoveryv1.Endpoint, p *keptPod) bool {
	return p == nil || e.TargetRef.UID == "" || e.TargetRef.UID == p.UID
}

// index lists names under keys.
type index[K comparable] map[K]map[name]struct{}

func (x index[K]) add(k K, n name) {
	if x[k] == nil {
		x[k] = map[name]struct{}{}
	}
	x[k][n] = struct{}{}
}

func (x index[K]) remove(k K, n name) {
	if delete(x[k], n); len(x[k]) == 0 {
		delete(x, k)
	}
}
