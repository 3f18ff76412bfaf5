package nodeproxy_test

import "net/netip"

type addr = netip.AddrPort
