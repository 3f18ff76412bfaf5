package answer

import (
	"testing"
)

func TestUDPFaultNamesRemedy(t *testing.T) {
	const allow, orTCP = "allow UDP port 15008 in firewalls, Services and NetworkPolicies", ", or set lines.transport: tcp on gateways and node proxies"
	passes := func(there, back int) *Path {
		return &Path{There: Way{PacketBytes: there}, Back: Way{PacketBytes: back}}
	}
	silent := &UDP{Failure: UDPSilent, Error: "no response in 3s", PacketBytes: 1228}
	for name, c := range map[string]struct {
		tried         Tried
		found, remedy string
	}{
		"not checked":                {Tried{Path: passes(1500, 1500)}, "", ""},
		"connects":                   {Tried{UDP: []*UDP{{HandshakeMS: 1}}}, "", ""},
		"silent":                     {Tried{UDP: []*UDP{silent}, Path: passes(1500, 1500)}, "UDP to it is blocked or dropped: no response in 3s", allow + orTCP},
		"silent, path unknown":       {Tried{UDP: []*UDP{silent}}, "UDP to it is blocked or dropped: no response in 3s", allow + orTCP},
		"silent, size unknown back":  {Tried{UDP: []*UDP{silent}, Path: passes(1200, 0)}, "UDP to it is blocked or dropped: no response in 3s", allow + orTCP},
		"silent, small packets pass": {Tried{UDP: []*UDP{silent}, Path: passes(1500, 1200)}, "UDP to it is blocked, or packets of 1228 bytes are dropped: no response in 3s. TCP was checked with packets of up to 1200 bytes", allow + ", and have packets of 1228 bytes pass" + orTCP},
		"refused":                    {Tried{UDP: []*UDP{{Failure: UDPRefused, Error: "connection refused"}}}, "UDP to it is refused: no process listens on UDP port 15008, or a firewall rejects it", "set lines.transport: auto on the gateways there, and " + allow + orTCP},
		"address of its own":         {Tried{UDP: []*UDP{{Address: "192.0.2.2:15009", Failure: UDPRefused, Error: "connection refused"}}}, "UDP to 192.0.2.2:15009 is refused: no process listens on UDP port 15009, or a firewall rejects it", "set lines.transport: auto on the gateways there, and allow UDP port 15009 in firewalls, Services and NetworkPolicies" + orTCP},
		"no route":                   {Tried{UDP: []*UDP{{Failure: UDPBlocked, Error: "no route to host"}}}, "UDP to it is blocked or dropped: no route to host", allow + orTCP},
		"too long":                   {Tried{UDP: []*UDP{{Failure: UDPBlocked, Error: "message too long", PacketBytes: 1228}}, Path: passes(1200, 1200)}, "UDP to it is blocked, or packets of 1228 bytes are dropped: message too long. TCP was checked with packets of up to 1200 bytes", allow + ", and have packets of 1228 bytes pass" + orTCP},
		"TLS":                        {Tried{UDP: []*UDP{{Failure: UDPNoQUIC, Error: "wrong identity"}}}, "UDP passes to it, QUIC does not connect: wrong identity", "lead UDP port 15008 to the same gateways as TCP port 15008 in Services and load balancers" + orTCP},
	} {
		c.tried.Address = "192.0.2.1:15008"
		faults := c.tried.UDPFaults()
		if (len(faults) > 0) != (c.found != "") || len(faults) > 0 && faults[0] != (Fault{c.found, c.remedy}) {
			t.Errorf("%s: %+v; want %q and %q", name, faults, c.found, c.remedy)
		}
	}
}
