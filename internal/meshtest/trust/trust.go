// Package trust is what tests of packages below gateway and node proxy need of a
// mesh: identities of one trust domain, a forged certificate of an instance, and
// waiting. Tests of whole processes have internal/meshtest.
package trust

import (
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/identity"
)

// Domain is the trust domain of all identities.
var Domain = spiffeid.RequireTrustDomainFromString("cluster.local")

// Workload is the identity of a service account of the system's namespace.
func Workload(account string) spiffeid.ID {
	return spiffeid.RequireFromPath(Domain, "/ns/isthmus-system/sa/"+account)
}

// Node is the identity of the node proxy of a node.
func Node(network, node string) spiffeid.ID {
	id, err := identity.NodeID(Workload("nodeproxy"), network, node)
	if err != nil {
		panic(err)
	}
	return id
}

// NewManager returns a manager that issues any identity of Domain.
func NewManager(t testing.TB) *identity.Manager {
	t.Helper()
	ca, err := identity.InitCA(t.TempDir(), Domain)
	if err != nil {
		t.Fatal(err)
	}
	return identity.NewManager(identity.CASource{CA: ca, TTL: time.Hour}, zerolog.Nop())
}

// Eventually polls until ok, with a deadline that only a bug reaches, and returns
// how long that took.
func Eventually(t testing.TB, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > 30*time.Second {
			t.Fatalf("after %v still not: %s", time.Since(start).Round(time.Millisecond), what)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(start)
}
