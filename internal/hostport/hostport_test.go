package hostport

import (
	"strings"
	"testing"
)

func TestAddressesAreOfOneMachineOrAName(t *testing.T) {
	for in, want := range map[string]string{
		"203.0.113.7:15008": "203.0.113.7", "[2001:db8::1]:15008": "2001:db8::1", "[::ffff:203.0.113.7]:1": "203.0.113.7",
		"gw.example.com:15008": "gw.example.com", "gw:1": "gw", "a1b2.elb.eu-central-1.amazonaws.com:15008": "a1b2.elb.eu-central-1.amazonaws.com",
	} {
		if host, port, err := Split(in); host != want || port == 0 || err != nil {
			t.Errorf("%s: %q, %d, %v; want %q", in, host, port, err, want)
		}
	}
	for _, in := range []string{"", ":15008", "gw.example.com", "gw.example.com:0", "gw.example.com:70000", "203.0.113.7", "203.0.113.7:0", "0.0.0.0:1", "224.0.0.1:1", "[fe80::1%eth0]:1",
		"-gw.example.com:1", "gw..example.com:1", "gw example.com:1", "2001:db8::1:15008", strings.Repeat("a", 64) + ".com:1", "gw.example.com:15008:1"} {
		if host, port, err := Split(in); err == nil {
			t.Errorf("%q is taken for %q and %d", in, host, port)
		}
	}
}
