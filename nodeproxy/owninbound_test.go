package nodeproxy

import (
	"context"
	"net"
	"testing"

	"github.com/isthmus-mesh/isthmus/identity"
)

func TestAnInboundConnectionWithoutOurCertificateIsOurOwnFault(t *testing.T) {
	p := newTestProxy(t, listing(t))
	in := &inbound{p: p, uid: "x"}
	ours, peers := net.Pipe()
	defer peers.Close()
	_, _, err := in.handshake(context.Background(), ours, nil)
	if got := identity.ReasonOf(err); got != identity.ReasonOwnIdentity {
		t.Errorf("reason %q of %v; want %q", got, err, identity.ReasonOwnIdentity)
	}
	if _, err := peers.Write([]byte{0}); err == nil {
		t.Error("the connection is still open")
	}
}
