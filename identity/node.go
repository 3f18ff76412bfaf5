package identity

import (
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// NodeID is the identity of the node proxy of node on network that runs as
// account: spiffe://<td>/ns/<namespace>/sa/<service account>/node/<network>/<node>.
// Whoever issues it has made sure that the holder is on that node. No workload
// has an identity of this form.
func NodeID(account spiffeid.ID, network, node string) (spiffeid.ID, error) {
	ns, sa, err := Names(account)
	if err != nil {
		return spiffeid.ID{}, err
	}
	id, err := spiffeid.FromSegments(account.TrustDomain(), "ns", ns, "sa", sa, "node", network, node)
	if err != nil {
		return spiffeid.ID{}, fmt.Errorf("identity of node %q on network %q: %w: use letters, digits, '-', '_' and '.' only", node, network, err)
	}
	return id, nil
}

// NodeOf takes the identity of a node proxy apart; not ok if id is none.
func NodeOf(id spiffeid.ID) (account spiffeid.ID, network, node string, ok bool) {
	p := strings.Split(id.Path(), "/")
	if len(p) != 8 || p[0] != "" || p[1] != "ns" || p[3] != "sa" || p[5] != "node" {
		return spiffeid.ID{}, "", "", false
	}
	account, err := WorkloadID(id.TrustDomain(), p[2], p[4])
	if err != nil {
		return spiffeid.ID{}, "", "", false
	}
	return account, p[6], p[7], true
}

// ParseIssued reads an identity that a CA may issue when its operator says so:
// that of a workload or of a node proxy. What others ask for is read by [ParseID].
func ParseIssued(s string) (spiffeid.ID, error) {
	id, err := spiffeid.FromString(s)
	if err != nil {
		return spiffeid.ID{}, fmt.Errorf("identity %q: %w: want spiffe://<trust domain>/ns/<namespace>/sa/<service account>", s, err)
	}
	if _, err := segments(id); err != nil {
		return spiffeid.ID{}, err
	}
	return id, nil
}

// segments are the names by which files of id are found: namespace and service
// account, and behind them node, network and node if it is that of a node proxy.
// None is empty, "." or "..", or has a separator.
func segments(id spiffeid.ID) ([]string, error) {
	if account, network, node, ok := NodeOf(id); ok {
		ns, sa, err := Names(account)
		return []string{ns, sa, "node", network, node}, err
	}
	ns, sa, err := Names(id)
	if err != nil {
		return nil, fmt.Errorf("%w, and for a node proxy /node/<network>/<node> behind it", err)
	}
	return []string{ns, sa}, nil
}
