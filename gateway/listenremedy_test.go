package gateway

import (
	"net/netip"
	"strings"
	"testing"
)

// An address that this machine does not have is no other gateway's doing.
func TestWhyAGatewayCannotListenIsSaid(t *testing.T) {
	l, err := listen(netip.MustParseAddrPort("127.0.0.1:0"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for at, want := range map[string]string{l.Addr().String(): "another gateway", "203.0.113.9:15008": "no interface here has that address"} {
		l, err := listen(netip.MustParseAddrPort(at), false)
		if err == nil {
			l.Close()
			t.Fatalf("it listens on %s", at)
		}
		if got := listenRemedy(err); !strings.Contains(got, want) {
			t.Errorf("%s: %v: %q, want %q in it", at, err, got, want)
		}
	}
}
