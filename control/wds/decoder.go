package wds

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/control/wds/wdspb"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// Config describes a node proxy and its server.
type Config struct {
	Network, Node string // of the node proxy
	TrustDomain   string
	// Istiod is set for a stock istiod, without our extensions.
	Istiod bool
	// Lookup returns the addresses of a host name of a gateway; none while they are not known. See
	// Decoder.Hosts. Nil: host names are not used.
	Lookup func(host string) []netip.Addr
}

// Everything stands for every service in [Decoder.Follow].
const Everything = "*"

// Decoder turns resources into changes of records for a [discovery.Builder]. It holds what a stream
// holds. Not safe for concurrent use.
type Decoder struct {
	c        Config
	made     map[Ref][]discovery.Key        // records of each resource
	shared   map[discovery.Key]int          // how many resources have made a record that several may make
	followed map[string]bool                // services with all their workloads
	services map[string]bool                // that are held, by key
	pods     map[string]*pod                // by uid
	members  map[string]map[string]struct{} // uids, by key of a service
	istiod   istiod
}

// pod is the state of a workload of the own network.
type pod struct {
	address  *discovery.Workload // as Address has it
	services []string            // keys
	node     *discovery.Workload // as NodePod has it: without an address, or outside of the mesh
}

// NewDecoder returns a decoder that holds nothing.
func NewDecoder(c Config) *Decoder {
	return &Decoder{c: c, made: map[Ref][]discovery.Key{}, shared: map[discovery.Key]int{}, followed: map[string]bool{}, services: map[string]bool{}, pods: map[string]*pod{}, members: map[string]map[string]struct{}{}, istiod: newIstiod()}
}

// Start returns the records that there are before any resource.
func (d *Decoder) Start() []discovery.Change {
	if !d.c.Istiod {
		return nil
	}
	return []discovery.Change{
		{Key: clusterKey(discovery.KindNetwork, d.c.Network), Record: discovery.Network{Name: d.c.Network, Nodes: []string{d.c.Node}}},
		{Key: discovery.RootNamespaceKey(), Record: discovery.RootNamespace{Name: policy.DefaultRootNamespace}},
	}
}

// Put takes a resource, new or changed. If it cannot be used, the error is an [*Error], and its former
// state stays. A policy is replaced by one that denies everything.
func (d *Decoder) Put(typ, name string, body []byte) ([]discovery.Change, error) {
	ref := Ref{typ, name}
	changes, err := d.put(ref, body)
	if e := (*Error)(nil); errors.As(err, &e) {
		e.Ref = ref
	}
	return changes, err
}

func (d *Decoder) put(ref Ref, body []byte) ([]discovery.Change, error) {
	if len(body) > MaxBody {
		err := invalid("body", len(body), "too large: at most 1 MiB")
		if ref.Type == TypeAuthorization {
			return d.closed(ref), err
		}
		return nil, err
	}
	switch ref.Type {
	case TypeAddress:
		m := &pb.Address{}
		if err := read(body, m); err != nil {
			return nil, err
		}
		return d.address(ref, m)
	case TypeAuthorization:
		m := &pb.Authorization{}
		err := read(body, m)
		if err == nil {
			var changes []discovery.Change
			if changes, err = d.authorization(ref, m); err == nil {
				return changes, nil
			}
		}
		return d.closed(ref), err
	case TypeMesh:
		m := &pb.Mesh{}
		if err := read(body, m); err != nil {
			return nil, err
		}
		return d.mesh(ref, m)
	case TypeNodePod:
		m := &pb.NodePod{}
		if err := read(body, m); err != nil {
			return nil, err
		}
		return d.nodePod(ref, m)
	}
	return nil, invalid("type", ref.Type, "not a type of this package")
}

// read decodes body into m, within limits.
func read(body []byte, m proto.Message) error {
	if err := proto.Unmarshal(body, m); err != nil {
		return invalid("body", len(body), "not readable: "+err.Error())
	}
	return bounded(m)
}

// Remove takes the removal of a resource.
func (d *Decoder) Remove(typ, name string) []discovery.Change {
	ref := Ref{typ, name}
	if typ == TypeNodePod {
		if p := d.pods[name]; p != nil {
			p.node = nil
			return d.emit(name)
		}
		return nil
	}
	changes := d.set(ref, nil)
	if typ == TypeAddress {
		changes = append(changes, d.drop(name)...)
	}
	return changes
}

// drop removes the state of a service, a pod or a remote service.
func (d *Decoder) drop(name string) (changes []discovery.Change) {
	if p := d.pods[name]; p != nil {
		d.join(name, p.services, nil)
		p.address, p.services = nil, nil
		changes = d.emit(name)
	}
	if d.services[name] {
		delete(d.services, name)
		changes = append(changes, d.emitMembers(name)...)
	}
	return append(changes, d.istiod.drop(d, name)...)
}

// Follow sets whether all workloads of a service are subscribed. service is its key, or Everything. A pod of
// another node is a member of followed services only: otherwise a service would lack members.
func (d *Decoder) Follow(service string, on bool) []discovery.Change {
	if d.followed[service] == on {
		return nil
	}
	if delete(d.followed, service); on {
		d.followed[service] = true
	}
	if service != Everything {
		return d.emitMembers(service)
	}
	var changes []discovery.Change
	for _, uid := range slices.Sorted(maps.Keys(d.pods)) {
		changes = append(changes, d.emit(uid)...)
	}
	return changes
}

// set replaces the records of ref.
func (d *Decoder) set(ref Ref, next []discovery.Change) (changes []discovery.Change) {
	var keys []discovery.Key
	for _, c := range next {
		keys = append(keys, c.Key)
	}
	for _, k := range d.made[ref] {
		if !slices.Contains(keys, k) && d.release(k) {
			changes = append(changes, discovery.Change{Key: k})
		}
	}
	for _, k := range keys {
		if !slices.Contains(d.made[ref], k) {
			d.shared[k]++
		}
	}
	if delete(d.made, ref); len(keys) > 0 {
		d.made[ref] = keys
	}
	return append(changes, next...)
}

func (d *Decoder) release(k discovery.Key) (gone bool) {
	if d.shared[k]--; d.shared[k] > 0 {
		return false
	}
	delete(d.shared, k)
	return true
}

// join notes that uid is a member of the services next, and was one of old.
func (d *Decoder) join(uid string, old, next []string) {
	for _, s := range old {
		if delete(d.members[s], uid); len(d.members[s]) == 0 {
			delete(d.members, s)
		}
	}
	for _, s := range next {
		if d.members[s] == nil {
			d.members[s] = map[string]struct{}{}
		}
		d.members[s][uid] = struct{}{}
	}
}

func (d *Decoder) emitMembers(service string) (changes []discovery.Change) {
	for _, uid := range slices.Sorted(maps.Keys(d.members[service])) {
		changes = append(changes, d.emit(uid)...)
	}
	return changes
}

// emit returns the record of a pod as it is now.
func (d *Decoder) emit(uid string) []discovery.Change {
	p := d.pods[uid]
	c := discovery.Change{Key: clusterKey(discovery.KindWorkload, uid)}
	switch {
	case p.address != nil:
		w := *p.address
		for _, s := range p.services {
			if d.services[s] && (w.Node == d.c.Node && w.Node != "" || d.followed[s] || d.followed[Everything]) {
				w.Services = append(w.Services, s[strings.IndexByte(s, '/')+1:])
			}
		}
		c.Record = w
	case p.node != nil:
		c.Record = *p.node
	default:
		delete(d.pods, uid)
	}
	return []discovery.Change{c}
}

func clusterKey(kind discovery.Kind, name string) discovery.Key {
	return discovery.Key{Kind: kind, Source: discovery.Cluster, Name: name}
}

// sourced returns a key with source Told for an object of another network: gateways of two networks may share an
// address.
func (d *Decoder) sourced(kind discovery.Kind, network, name string) discovery.Key {
	k := clusterKey(kind, name)
	if network != d.c.Network {
		k.Source = discovery.Told
	}
	return k
}

func (d *Decoder) mesh(ref Ref, m *pb.Mesh) ([]discovery.Change, error) {
	switch {
	case ref.Name != MeshName:
		return nil, invalid("name", ref.Name, "the only resource of this type is mesh")
	case m.GetTrustDomain() != d.c.TrustDomain:
		return nil, invalid("trust_domain", m.GetTrustDomain(), "this node proxy is in "+d.c.TrustDomain+": correct one of them")
	case !slices.ContainsFunc(m.GetNetworks(), func(n *pb.Network) bool { return n.GetName() == d.c.Network }):
		return nil, invalid("networks", len(m.GetNetworks()), "network "+d.c.Network+" is not among them: correct network of this node proxy, or of the gateway")
	}
	var out []discovery.Change
	for _, n := range m.GetNetworks() {
		r := discovery.Network{Name: n.GetName(), Segment: n.GetSegment()}
		if r.Name == d.c.Network {
			r.Nodes = []string{d.c.Node}
		}
		out = append(out, discovery.Change{Key: clusterKey(discovery.KindNetwork, r.Name), Record: r})
	}
	if root := m.GetRootNamespace(); root != "" {
		out = append(out, discovery.Change{Key: discovery.RootNamespaceKey(), Record: discovery.RootNamespace{Name: root, Known: policy.Revisions{Authorizations: m.GetAuthorizationPolicies(), PeerAuthentications: m.GetPeerAuthentications()}}})
	}
	return d.set(ref, out), nil
}

func (d *Decoder) nodePod(ref Ref, m *pb.NodePod) ([]discovery.Change, error) {
	w := &discovery.Workload{UID: ref.Name, Network: d.c.Network, Node: d.c.Node, Scheduled: true, Outside: true}
	if s := m.GetScheduled(); s != nil {
		if s.GetNode() != d.c.Node {
			return nil, invalid("scheduled.node", s.GetNode(), "a pod of another node")
		}
		read, _, err := d.workload(s)
		if err != nil {
			return nil, err
		}
		w = &read
		w.UID, w.Addresses, w.Scheduled = ref.Name, nil, true
	}
	p := d.pod(ref.Name)
	p.node = w
	return d.emit(ref.Name), nil
}

func (d *Decoder) pod(uid string) *pod {
	p := d.pods[uid]
	if p == nil {
		p = &pod{}
		d.pods[uid] = p
	}
	return p
}

// address takes a workload or a service.
func (d *Decoder) address(ref Ref, m *pb.Address) ([]discovery.Change, error) {
	if s := m.GetService(); s != nil {
		return d.service(ref, s)
	}
	w := m.GetWorkload()
	if w == nil {
		return nil, invalid("type", "", "neither a workload nor a service")
	}
	if w.GetUid() != ref.Name {
		return nil, invalid("workload.uid", w.GetUid(), "not the name of the resource")
	}
	if w.GetNetwork() == "" {
		w.Network = d.c.Network
	}
	var remote pb.RemoteService
	var gateway pb.Gateway
	isRemote, err := unpack(w.GetExtensions(), "RemoteService", &remote)
	isGateway, failed := unpack(w.GetExtensions(), "Gateway", &gateway)
	if err = cmp.Or(err, failed); err != nil {
		return nil, err
	}
	switch {
	case isRemote:
		return d.remote(ref, w, &remote)
	case isGateway:
		return d.gateway(ref, w, &gateway)
	case d.c.Istiod && strings.Contains(ref.Name, splitHorizon):
		return d.istiod.remote(d, ref, w)
	case d.c.Istiod && strings.HasPrefix(ref.Name, gatewayPrefix):
		return d.istiod.gateway(d, ref, w)
	}
	return d.addressedPod(ref, w)
}

// addressedPod takes a pod of the own network. Pods of other networks are reached as remote services. Pods that share
// the address of their node, and workloads with a host name, are not used; only a stock istiod sends them.
func (d *Decoder) addressedPod(ref Ref, m *pb.Workload) ([]discovery.Change, error) {
	if m.GetNetwork() != d.c.Network || m.GetNetworkMode() == pb.NetworkMode_HOST_NETWORK {
		return append(d.set(ref, nil), d.drop(ref.Name)...), nil
	}
	if h := m.GetHostname(); h != "" && len(m.GetAddresses()) == 0 {
		c := discovery.Change{Key: clusterKey(discovery.KindWorkload, ref.Name), Faults: []discovery.Problem{{Out: true, Cause: discovery.CauseUnsupported, Field: "hostname", Value: h, Message: "workloads without an address are not used: give it an IP address"}}}
		return append(d.drop(ref.Name), d.set(ref, []discovery.Change{c})...), nil
	}
	w, services, err := d.workload(m)
	if err != nil {
		return nil, err
	}
	p := d.pod(ref.Name)
	d.join(ref.Name, p.services, services)
	p.address, p.services = &w, services
	return append(d.set(ref, nil), d.emit(ref.Name)...), nil
}

// workload returns a pod, and the keys of its services, sorted.
func (d *Decoder) workload(m *pb.Workload) (w discovery.Workload, services []string, err error) {
	w = discovery.Workload{UID: m.GetUid(), Name: m.GetName(), Namespace: m.GetNamespace(), ServiceAccount: cmp.Or(m.GetServiceAccount(), defaultAccount), Network: d.c.Network, Node: m.GetNode(), Cluster: m.GetClusterId(),
		Locality: decodeLocality(m.GetLocality())}
	if td := cmp.Or(m.GetTrustDomain(), defaultTrustDomain); td != d.c.TrustDomain {
		return w, nil, invalid("workload.trust_domain", td, "this node proxy is in "+d.c.TrustDomain+": workloads of one network share a trust domain")
	}
	if w.Addresses, err = decodeAddresses("workload.addresses", m.GetAddresses()); err != nil {
		return w, nil, err
	}
	if m.GetTunnelProtocol() != pb.TunnelProtocol_HBONE {
		w.Protocol = "TCP"
	}
	var x pb.WorkloadExtension
	if _, err = unpack(m.GetExtensions(), "WorkloadExtension", &x); err != nil {
		return w, nil, err
	}
	switch s := x.GetState(); {
	case s == pb.State_STATE_READY, s == pb.State_STATE_FROM_STATUS && m.GetStatus() == pb.WorkloadStatus_HEALTHY:
		w.State = mesh.Ready.String()
	case s == pb.State_STATE_TERMINATING:
		w.State = mesh.Terminating.String()
	case s == pb.State_STATE_SERVING:
		w.State = mesh.Serving.String()
	default: // also a state of a later version
		w.State = mesh.NotReady.String()
	}
	if c := m.GetCapacity(); c != nil && (c.GetValue() > 0 || !d.c.Istiod) {
		w.Capacity = &c.Value
	} else if c != nil { // never chosen
		w.State = mesh.NotReady.String()
	}
	for _, p := range x.GetPorts() {
		number, err := decodePort("workload.extensions.ports", p.GetPort())
		if err != nil {
			return w, nil, err
		}
		w.Ports = append(w.Ports, discovery.NamedPort{Name: p.GetName(), Port: number})
	}
	services = slices.Sorted(maps.Keys(m.GetServices()))
	if d.c.Istiod {
		if w.Ports, err = portsByService(m.GetServices(), services); err != nil {
			return w, nil, err
		}
	}
	for _, name := range m.GetAuthorizationPolicies() {
		if _, called, _ := strings.Cut(name, "/"); d.c.Istiod || !strings.HasPrefix(called, strictPrefix) {
			if w.Labels == nil {
				w.Labels = map[string]string{}
			}
			w.Labels[policyLabel(name)] = ""
		}
	}
	return w, services, nil
}

// policyLabel is the label of the workloads that list a policy: the policy selects them by it.
func policyLabel(name string) string { return "policy/" + name }

func (d *Decoder) remote(ref Ref, m *pb.Workload, x *pb.RemoteService) ([]discovery.Change, error) {
	s := discovery.Share{Network: m.GetNetwork(), Name: m.GetName(), Namespace: m.GetNamespace(), Hostname: x.GetHostname(), Aliases: x.GetAliases(), Scope: x.GetScope(), TrafficDistribution: x.GetDistribution(),
		Identities: x.GetIdentities(), Headless: x.GetHeadless(), Affinity: mesh.Affinity(x.GetAffinity()), Created: decodeTime(x.GetCreated())}
	if c := m.GetCapacity(); c != nil {
		s.Capacity = &c.Value
	}
	if s.Network == d.c.Network {
		return nil, invalid("workload.network", s.Network, "a remote service on the network of this node proxy")
	}
	for _, p := range x.GetPorts() {
		number, err := decodePort("workload.extensions.ports", p.GetPort())
		if err != nil {
			return nil, err
		}
		s.Ports = append(s.Ports, discovery.SharePort{Name: p.GetName(), Port: number})
	}
	return d.set(ref, []discovery.Change{{Key: clusterKey(discovery.KindShare, ref.Name), Record: s}}), nil
}

func (d *Decoder) gateway(ref Ref, m *pb.Workload, x *pb.Gateway) ([]discovery.Change, error) {
	g := discovery.Gateway{Name: m.GetName(), Network: m.GetNetwork(), ServiceAccount: m.GetNamespace() + "/" + cmp.Or(m.GetServiceAccount(), defaultAccount), Locality: decodeLocality(m.GetLocality()), Drained: x.GetDrained(), Group: x.GetGroup()}
	if td := cmp.Or(m.GetTrustDomain(), defaultTrustDomain); td != d.c.TrustDomain {
		g.TrustDomain = td
	}
	at, err := decodeAddrPorts("workload.extensions.addresses", x.GetAddresses())
	if err == nil && len(at) == 0 {
		err = invalid("workload.extensions.addresses", "", "missing: a gateway has one at least")
	}
	if err != nil {
		return nil, err
	}
	g.Address, g.MoreAddresses = at[0], at[1:]
	if g.QUICAddresses, err = decodeAddrPorts("workload.extensions.quic", x.GetQuic()); err != nil {
		return nil, err
	}
	if f := x.GetFederation(); len(f) > 0 {
		if err := g.FederationAddress.UnmarshalBinary(f); err != nil || !g.FederationAddress.IsValid() {
			return nil, invalid("workload.extensions.federation", f, "not an address and a port")
		}
	}
	for _, b := range x.GetSources() {
		var p netip.Prefix
		if err := p.UnmarshalBinary(b); err != nil || !p.IsValid() {
			return nil, invalid("workload.extensions.sources", b, "not a range of addresses")
		}
		g.Sources = append(g.Sources, p)
	}
	return d.set(ref, []discovery.Change{{Key: d.sourced(discovery.KindGateway, g.Network, g.Network+"/"+g.Name), Record: g}}), nil
}
