package mesh

import "slices"

// HBONEPort is where every pod's node proxy, and by custom every gateway,
// accepts tunnels (ztunnel's number).
const HBONEPort = 15008

// reserved are the ports on which a node proxy itself listens (ztunnel's
// numbers): outbound, inbound in plain text, HBONE, SOCKS5.
var reserved = []uint16{15001, 15006, HBONEPort, 15080}

// ReservedPort reports whether a node proxy itself listens on port: connecting
// to an application there would loop.
func ReservedPort(port uint16) bool { return slices.Contains(reserved, port) }
