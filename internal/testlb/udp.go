package testlb

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// UDP is the address of a load balancer of UDP with one backend.
type UDP struct {
	to      netip.AddrPort
	front   *net.UDPConn
	packets atomic.Int64
	run     sync.WaitGroup
}

// ServeUDP passes packets that arrive at an address on to a backend, and its answers back.
func ServeUDP(at, to netip.AddrPort) (*UDP, error) {
	front, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	u := &UDP{to: to, front: front}
	u.run.Go(u.serve)
	return u, nil
}

// Packets returns how many packets clients have sent.
func (u *UDP) Packets() int64 { return u.packets.Load() }

// Close stops it.
func (u *UDP) Close() {
	u.front.Close()
	u.run.Wait()
}

func (u *UDP) serve() {
	backs := map[netip.AddrPort]*net.UDPConn{} // by client
	each(u.front, func(b []byte, client netip.AddrPort) {
		u.packets.Add(1)
		back := backs[client]
		if back == nil {
			var err error
			if back, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(u.to)); err != nil {
				return
			}
			backs[client] = back
			u.run.Go(func() {
				each(back, func(b []byte, _ netip.AddrPort) { u.front.WriteToUDPAddrPort(b, client) })
			})
		}
		back.Write(b)
	})
	for _, back := range backs {
		back.Close()
	}
}

// each calls f with each packet of conn, until that is closed or fails.
func each(conn *net.UDPConn, f func(b []byte, from netip.AddrPort)) {
	b := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		f(b[:n], from)
	}
}
