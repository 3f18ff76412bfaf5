package pods

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestAnAddressThatIsNotThereIsSaidWithThoseThatAre(t *testing.T) {
	var many []netip.Addr
	for i := range 10 {
		many = append(many, netip.MustParseAddr(fmt.Sprintf("10.99.1.%d", 10+i)))
	}
	for want, has := range map[string][]netip.Addr{
		"has its address 10.99.1.2; it has none yet: ":                                                                         {netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("fe80::1")},
		"has its address 10.99.1.2; it has 10.99.1.3, fd00::3: if it is this pod's, ":                                          {netip.MustParseAddr("::1"), netip.MustParseAddr("10.99.1.3"), netip.MustParseAddr("fd00::3")},
		"; it has 10.99.1.10, 10.99.1.11, 10.99.1.12, 10.99.1.13, 10.99.1.14, 10.99.1.15, 10.99.1.16, 10.99.1.17 and 2 more: ": many,
	} {
		if got := notIts(netip.MustParseAddr("10.99.1.2"), has).Error(); !strings.Contains(got, want) {
			t.Errorf("%q, want %q in it", got, want)
		}
	}
}
