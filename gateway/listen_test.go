package gateway

import (
	"net/netip"
	"testing"
)

func TestAnAddressIsSharedOnlyIfBothSaySo(t *testing.T) {
	for _, first := range []bool{false, true} {
		for _, second := range []bool{false, true} {
			a, err := listen(netip.MustParseAddrPort("127.0.0.1:0"), first)
			if err != nil {
				t.Fatal(err)
			}
			b, err := listen(netip.MustParseAddrPort(a.Addr().String()), second)
			if (err == nil) != (first && second) {
				t.Errorf("first %v, second %v: %v", first, second, err)
			}
			if err == nil {
				b.Close()
			}
			a.Close()
		}
	}
}
