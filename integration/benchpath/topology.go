//go:build linux

package main

import (
	"net/netip"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// place is where a proxy and its pod are: netspace.Here with a loopback address,
// or a host of its own.
type place struct {
	host    string
	address netip.Addr
}

// topology says where everything is. Ours and a stock proxy cannot share a host:
// both have port 15008.
type topology struct {
	name             string
	kinds            []string // of node proxies
	clients, servers map[string]place
	gateway          place
}

const (
	ours  = "ours"
	stock = "stock"
)

// onLoopback needs no root. All of the way is the loopback device.
func onLoopback() topology {
	at := func(address string) place { return place{netspace.Here, netip.MustParseAddr(address)} }
	return topology{
		name:    "loopback",
		kinds:   []string{ours},
		clients: map[string]place{ours: at("127.21.1.2")},
		servers: map[string]place{ours: at("127.21.2.2")},
		gateway: at("127.21.9.1"),
	}
}

// onHosts has a client, a gateway and a server on a bridge, and with a stock
// ztunnel a second client and server for it.
func onHosts(withStock bool) topology {
	at := func(host, address string) place { return place{host, netip.MustParseAddr(address)} }
	t := topology{
		name:    "hosts",
		kinds:   []string{ours},
		clients: map[string]place{ours: at("client-ours", "10.71.1.2")},
		servers: map[string]place{ours: at("server-ours", "10.71.2.2")},
		gateway: at("gateway", "10.71.9.1"),
	}
	if withStock {
		t.kinds = append(t.kinds, stock)
		t.clients[stock] = at("client-stock", "10.71.1.3")
		t.servers[stock] = at("server-stock", "10.71.2.3")
	}
	return t
}

// segment are the hosts as a space wants them; none on loopback.
func (t topology) segment() map[string][]string {
	hosts := map[string][]string{}
	for _, places := range []map[string]place{t.clients, t.servers, {"": t.gateway}} {
		for _, p := range places {
			if p.host != netspace.Here {
				hosts[p.host] = []string{p.address.String()}
			}
		}
	}
	return hosts
}

// local is an address for what only the place itself uses. Without hosts of
// their own places share the machine, but not 127.0.0.0/8.
func (p place) local(port uint16) netip.AddrPort {
	if p.host == netspace.Here {
		return netip.AddrPortFrom(p.address, port)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
}

func (p place) at(port uint16) netip.AddrPort { return netip.AddrPortFrom(p.address, port) }
