package pods

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/names"
)

// Options are how the pods of which node are captured.
type Options struct {
	Config
	Node, Network, TrustDomain string        // the node proxy's own
	Drain                      time.Duration // timeouts.drain
	SlowConnect                time.Duration // when the client of a connect to an application is told that it takes long, and may go elsewhere
}

// owner is whose rules this process sets.
func (o Options) owner() string {
	owner := o.TrustDomain + "/" + o.Network
	return owner[:min(len(owner), 100)]
}

// Parent is the node proxy whose pods they are: it decides, and serves what is opened here. Functions are safe for
// concurrent use, and none waits for a pod.
type Parent struct {
	Log   zerolog.Logger
	Store *discovery.Store // of the snapshot by which pods come and go, and which has the addresses of rules
	Data  context.Context  // of what is served in pods: ends when what is open has drained, or is cut
	Go    func(f func())   // runs what the process waits for before it calls Close

	Locals   func() []*mesh.Workload // those of this node that are to be captured
	Draining func() bool             // the process was told to stop, before Drain: no pod is entered, and no rules are set. Never false again

	Gateways func() bool                              // they say what there is, and not a file
	Told     func() bool                              // what there is was said, by them or the file
	Announce func(uid string, addresses []netip.Addr) // the CNI plugin has said which addresses a pod has; the last word counts
	Forget   func(uid string)                         // that holds no longer

	Changed func()           // pods were entered or left; called by Run
	Retire  func(uid string) // no new connection is to use a session that begins in the namespace of this workload

	// Names returns what answers the DNS queries of a workload that has those addresses in its namespace, by the resolver
	// that is its own. dial reaches one of the servers there, from where the pod is.
	Names func(uid string, addresses []netip.Addr, resolver func() names.Resolver, dial func(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error)) *names.Server
	// Plain returns what the policies in force for a pod do with connections in plain text: whether they may deny some,
	// and whether they deny one between these ends.
	Plain func(w *mesh.Workload) (mayDeny bool, denies func(from, to netip.AddrPort) bool)
	// Serve returns what is to serve the listeners of a pod that is just being entered.
	Serve func(h *Pod, l Listeners) (Server, error)
}

// Listeners are open in the network namespace of a pod. Whoever serves them accepts until they are closed, which the
// package does.
type Listeners struct {
	Tunnels  *net.TCPListener   // of tunnels to the pod, at its first address
	Opened   []*net.TCPListener // of what the pod opens: one of each family that it has
	Arriving *net.TCPListener   // of what others open to it in plain text; nil: that is not captured

	// Undecided has the first packets of what the pod opens. It is served until it is closed, also while the pod drains;
	// the parent may close it too.
	Undecided *capture.Undecided
}

// list is all of them that are open.
func (l Listeners) list() (out []*net.TCPListener) {
	if l.Tunnels != nil {
		out = append(out, l.Tunnels)
	}
	out = append(out, l.Opened...)
	if l.Arriving != nil {
		out = append(out, l.Arriving)
	}
	return out
}

// Server serves the listeners of one pod: a part of the parent.
type Server interface {
	// Start begins to serve, and does not wait: locks are held.
	Start()
	// Drain returns when what is open has ended, after the listeners were closed, or when ctx has ended.
	Drain(ctx context.Context)
	// Problems are what goes wrong with the connections of the pod, as in "had connections refused".
	Problems(now time.Time) []string
}
