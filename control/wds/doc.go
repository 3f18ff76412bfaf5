// Package wds maps snapshots to resources of delta xDS and back: Istio's Address (workloads and
// services) and Authorization, and two types of ours. An [Encoder] runs at a gateway, a [Decoder] at a
// node proxy. It does not know how resources travel.
//
// It promises:
//
//   - Equal snapshots have equal bytes. The work of an update is in proportion to the change. Only a
//     change of policies with a selector looks at every workload.
//   - A node proxy builds the same services, workloads, gateways and decisions as its gateway.
//   - A stock ztunnel can use the resources. A node proxy can use the resources of a stock istiod.
//   - A resource that cannot be used is an [*Error] with its name, field, value and remedy. It affects no
//     other resource. An unreadable policy denies everything in its namespace.
//
// The gateway verifies and admits other networks before their services come into its snapshot, as
// records of discovery (Share, Gateway, Network). They have no workloads there: see
// [discovery.Config.ListFor]. Node proxies trust their gateways.
//
// # Keys
//
// A client subscribes to keys. Besides names and aliases (NETWORK/ADDRESS) there are groups:
//
//	NAMESPACE/HOSTNAME        a service, its workloads and its parts on other networks; also by
//	                          NETWORK/ADDRESS of the service
//	isthmus:name/NAME         the service with a hostname or alias, without workloads
//	isthmus:node/NODE         the pods of a node
//	isthmus:namespace/NAME    the policies of a namespace
//	isthmus:every-node        networks, gateways, policies of the root namespace
//	isthmus:takeover          services with addresses that lead to other networks
//
// A node proxy starts with [NodeKeys]. When the first pod of a namespace comes to its node, it subscribes to
// the namespace's policies, and must wait for them before it serves the pod.
//
// # Where everything goes
//
// "+" is an extension: messages of isthmus.workload.v1 in the fields extensions.
//
//	network, segment, root namespace,         Mesh
//	trust domain, known policy revisions
//	service: name, namespace, hostname        Service 1 to 3
//	  virtual addresses                       4; of its import too, if its hostname leads to them
//	  ports: number and target                5; name, name of the target, UDP and SCTP: +
//	  distribution, publishNotReady           8; PreferClose, and the object that sets it: +
//	  aliases, scope, takeover, import        +
//	  identities on other networks            6; by network: + of the remote service
//	pod: uid, name, namespace, account, node, Workload 20, 1, 2, 7, 9, 18, 3, 24, 27, 6, 4
//	  cluster, addresses, locality, capacity,
//	  trust domain, network
//	  without a node proxy                    5 NONE
//	  not ready                               17 UNHEALTHY; terminating, serving: UNHEALTHY and +
//	  services with target ports              22; names of the target ports: +
//	  labels                                  16: policies that select it
//	scheduled pod, pod outside of the mesh    NodePod
//	remote service: network, name, namespace, Workload NETWORK/SplitHorizonWorkload/…: 4, 1, 2, 27
//	  capacity
//	  hostname, ports, scope, distribution,   +; ports also 22, if the hostname leads there
//	  aliases, identities, age, affinity,
//	  headless
//	gateway: name, network, locality,         Workload NetworkGateway/…: 1, 4, 24, 2, 7, 6
//	  identity
//	  addresses                               3, with the port of the first one; all: +
//	  drained                                 17 UNHEALTHY while another one is not; always: +
//	  QUIC and federation addresses,          +
//	  sources, group
//	policy: AuthorizationPolicy               Authorization 1 to 6; the object and its revision: +
//	  PeerAuthentication                      + of an Authorization without rules; for ztunnel as DENY
//	                                          policies (isthmus_strict…) that workloads list
//	asked name → service, or nothing          the resource, or its removal
//
// Health by endpoint and port is in package control/health. For a stock ztunnel, which reads only
// status, [Encoder.SetUnhealthy] adds it by workload.
//
// # Limits of a stock neighbor
//
// A stock ztunnel reaches other networks by hostnames with takeover only, through a service that
// stands for the gateways of the network. From a stock istiod these are not used: waypoints (a
// problem of the service), workloads with a host name and no address, pods on the host network,
// visibility, ranges of addresses. Its capacity of a remote service counts unready pods.
package wds
