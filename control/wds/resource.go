package wds

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/control/wds/wdspb"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Types of resources. Mesh and NodePod are ours.
const (
	TypeAddress       = "type.googleapis.com/istio.workload.Address"
	TypeAuthorization = "type.googleapis.com/istio.security.Authorization"
	TypeMesh          = "type.googleapis.com/isthmus.workload.v1.Mesh"
	TypeNodePod       = "type.googleapis.com/isthmus.workload.v1.NodePod"
)

// Types lists the types in the order in which a stream sends them.
func Types() []string { return []string{TypeMesh, TypeAddress, TypeAuthorization, TypeNodePod} }

// MeshName is the name of the only resource of TypeMesh.
const MeshName = "mesh"

// Ref names a resource.
type Ref struct{ Type, Name string }

// Resource is one resource as every client receives it. Its body is the same for equal content.
type Resource struct {
	Type, Name string
	Aliases    []string // network/address of each address
	Keys       []string // for subscriptions: name, aliases and groups
	Body       []byte
}

// Batch is a change of the resources of a gateway.
type Batch struct {
	Whole  bool // resources that are not in Put are gone
	Put    []Resource
	Remove []Ref
}

// Keys of groups. No network has such a name.
const (
	// EveryNode has networks, gateways and the policies of the root namespace.
	EveryNode = "isthmus:every-node"
	// Takeover has services with addresses that lead to other networks, for node proxies that capture them.
	Takeover = "isthmus:takeover"
)

// NodeKey is the key of the pods of a node.
func NodeKey(node string) string { return "isthmus:node/" + node }

// NamespaceKey is the key of the policies of a namespace.
func NamespaceKey(namespace string) string { return "isthmus:namespace/" + namespace }

// NameKey is the key of the service with a hostname or alias, without its workloads.
func NameKey(name string) string { return "isthmus:name/" + name }

// ServiceKey is the name of a service, and the key of its workloads too.
func ServiceKey(namespace, hostname string) string { return namespace + "/" + hostname }

func keyOf(s *mesh.Service) string { return ServiceKey(s.Namespace, s.Hostname) }

// gatewaysOf returns the service that stands for the gateways of a network. Its hostname has one label less than
// the global names of services, so it is not one of them.
func gatewaysOf(network string) *pb.NamespacedHostname {
	return &pb.NamespacedHostname{Namespace: "isthmus-system", Hostname: network + ".mesh.internal"}
}

// Uids of workloads that are no pods.
const (
	gatewayPrefix = "NetworkGateway/"
	splitHorizon  = "/SplitHorizonWorkload/"
)

func gatewayUID(g *mesh.Gateway) string { return gatewayPrefix + g.Network + "/" + g.Name }

// RemoteUID is the name of the resource of a service as another network offers it.
func RemoteUID(network, namespace, hostname string) string {
	return network + splitHorizon + ServiceKey(namespace, hostname)
}

const extensionPrefix = "type.googleapis.com/isthmus.workload.v1."

// pack makes an extension of m, which is called name in isthmus.workload.v1.
func pack(name string, m proto.Message) []*pb.Extension {
	return []*pb.Extension{{Name: "isthmus", Config: &pb.Any{TypeUrl: extensionPrefix + name, Value: marshal(m)}}}
}

// unpack reads the extension called name into m. has is false if there is none.
func unpack(list []*pb.Extension, name string, m proto.Message) (has bool, err error) {
	for _, x := range list {
		if x.GetConfig().GetTypeUrl() == extensionPrefix+name {
			if err := proto.Unmarshal(x.GetConfig().GetValue(), m); err != nil {
				return false, invalid("extensions", name, "is not readable: "+err.Error())
			}
			return true, bounded(m)
		}
	}
	return false, nil
}

// marshal is nil if a text is not UTF-8, which discovery admits nowhere.
func marshal(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil
	}
	return b
}

// Error is a resource that cannot be used. The others are not affected.
type Error struct {
	Ref
	Field, Value, Remedy string
}

func (e *Error) Error() string {
	return fmt.Sprintf("resource %s of type %s: %s %.80q: %s", e.Name, e.Type, e.Field, e.Value, e.Remedy)
}

func invalid(field string, value any, remedy string) *Error {
	return &Error{Field: field, Value: fmt.Sprint(value), Remedy: remedy}
}
