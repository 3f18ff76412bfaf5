package identity

import (
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// ParseTrustDomain reads the plain name of a trust domain, without spiffe://.
func ParseTrustDomain(name string) (spiffeid.TrustDomain, error) {
	td, err := spiffeid.TrustDomainFromString(name)
	if err != nil || td.Name() != name {
		return spiffeid.TrustDomain{}, fmt.Errorf("%q is not a trust domain: use lower-case letters, digits, dots, hyphens and underscores, such as cluster.local", name)
	}
	return td, nil
}

// AccountID is the identity of the service account namespace/name in td.
func AccountID(td spiffeid.TrustDomain, account string) (spiffeid.ID, error) {
	ns, sa, ok := strings.Cut(account, "/")
	id, err := spiffeid.FromSegments(td, "ns", ns, "sa", sa)
	if err != nil || !ok {
		return spiffeid.ID{}, fmt.Errorf("%q is not a service account: write namespace/name, such as isthmus-system/nodeproxy", account)
	}
	return id, nil
}

// ParseAccount is AccountID in the trust domain called name. Both are wrong at
// once in the worst case; each error is for its own field.
func ParseAccount(name, account string) (id spiffeid.ID, domain, acc error) {
	td, domain := ParseTrustDomain(name)
	if domain != nil {
		td = spiffeid.RequireTrustDomainFromString("cluster.local")
	}
	id, acc = AccountID(td, account)
	if domain != nil || acc != nil {
		id = spiffeid.ID{}
	}
	return id, domain, acc
}
