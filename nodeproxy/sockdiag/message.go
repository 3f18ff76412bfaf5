package sockdiag

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"
)

// Numbers of linux/sock_diag.h, linux/inet_diag.h, linux/netlink.h and tcp_states.h.
const (
	protocolTCP  = 6
	familyV4     = 2
	familyV6     = 10
	sockDiag     = 20 // SOCK_DIAG_BY_FAMILY
	sockDestroy  = 21 // SOCK_DESTROY
	groupTCP4    = 1  // SKNLGRP_INET_TCP_DESTROY
	groupTCP6    = 3  // SKNLGRP_INET6_TCP_DESTROY
	messageError = 2
	messageDone  = 3
	flagRequest  = 0x1
	flagAck      = 0x4
	flagDump     = 0x300
	headerBytes  = 16
	requestBytes = headerBytes + 56
	socketBytes  = 72 // struct inet_diag_msg
	listenState  = 10
	anyCookie    = ^uint64(0)

	waitingStates = 1<<1 | 1<<8 // ESTABLISHED, CLOSE_WAIT: what an accept queue holds
	listenStates  = 1 << listenState
	openStates    = 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<8 | 1<<9 | 1<<11 | 1<<12 // all but TIME_WAIT, CLOSE and LISTEN
	anyState      = ^uint32(0)
)

// socket is a struct inet_diag_msg.
type socket struct {
	family        uint8
	state         uint8
	local, remote netip.AddrPort
	device        uint32 // index of the interface that it is bound to, or 0
	cookie        uint64
	queue, limit  uint32
	inode         uint32
}

func (s socket) listener() Listener {
	return Listener{Cookie: s.cookie, Local: s.local, Queue: s.queue, Backlog: s.limit, family: s.family}
}

// question asks for one socket, or for all with its local port and one of these states.
type question struct {
	all    bool
	end    bool // reset the socket
	family uint8
	states uint32
	local  netip.AddrPort
	remote netip.AddrPort // of a connection; not valid: a listener is asked for
	device uint32         // index of the interface by which packets come, or 0
	cookie uint64         // of the socket; 0 for any
}

func (q question) message(sequence uint32) []byte {
	b := make([]byte, requestBytes)
	native := binary.NativeEndian
	native.PutUint32(b[0:], requestBytes)
	native.PutUint16(b[4:], sockDiag)
	flags := uint16(flagRequest)
	if q.all {
		flags |= flagDump
	}
	if q.end {
		native.PutUint16(b[4:], sockDestroy)
		flags |= flagAck
	}
	native.PutUint16(b[6:], flags)
	native.PutUint32(b[8:], sequence)
	r := b[headerBytes:]
	r[0], r[1] = q.family, protocolTCP
	native.PutUint32(r[4:], q.states)
	id := r[8:]
	binary.BigEndian.PutUint16(id[0:], q.local.Port())
	if a := q.local.Addr(); a.IsValid() {
		copy(id[4:20], a.AsSlice())
	}
	if q.remote.IsValid() {
		binary.BigEndian.PutUint16(id[2:], q.remote.Port())
		copy(id[20:36], q.remote.Addr().AsSlice())
	}
	native.PutUint32(id[36:], q.device)
	cookie := q.cookie
	if cookie == 0 {
		cookie = anyCookie
	}
	native.PutUint32(id[40:], uint32(cookie))
	native.PutUint32(id[44:], uint32(cookie>>32))
	return b
}

// decode calls each for every socket of an answer to sequence, or, if that is 0, of an
// event. done says that no more messages follow: of a dump they come in several.
func decode(b []byte, sequence uint32, each func(socket)) (done bool, err error) {
	native := binary.NativeEndian
	for len(b) > 0 {
		if len(b) < headerBytes {
			return true, fmt.Errorf("sockdiag: %d bytes behind the last message", len(b))
		}
		size, kind := native.Uint32(b), native.Uint16(b[4:])
		if size < headerBytes || uint64(size) > uint64(len(b)) {
			return true, fmt.Errorf("sockdiag: a message of %d bytes in %d", size, len(b))
		}
		body := b[headerBytes:size]
		ours := native.Uint32(b[8:]) == sequence
		b = b[min(len(b), int(size+3)&^3):]
		switch {
		case !ours && sequence != 0:
			continue // the rest of a dump that was given up
		case kind == messageDone:
			return true, nil
		case kind == messageError:
			if len(body) < 4 {
				return true, fmt.Errorf("sockdiag: an error of %d bytes", len(body))
			}
			if errno := -int32(native.Uint32(body)); errno != 0 {
				return true, syscall.Errno(errno)
			}
			return true, nil
		case kind != sockDiag:
			continue
		}
		s, err := decodeSocket(body)
		if err != nil {
			return true, err
		}
		each(s)
	}
	return false, nil
}

func decodeSocket(b []byte) (s socket, err error) {
	if len(b) < socketBytes {
		return s, fmt.Errorf("sockdiag: a socket of %d bytes; want at least %d", len(b), socketBytes)
	}
	id := b[4:]
	address := func(at int, port int) netip.AddrPort {
		var a netip.Addr
		if b[0] == familyV6 {
			a = netip.AddrFrom16([16]byte(id[at : at+16])).Unmap()
		} else {
			a = netip.AddrFrom4([4]byte(id[at : at+4]))
		}
		return netip.AddrPortFrom(a, binary.BigEndian.Uint16(id[port:]))
	}
	if b[0] != familyV4 && b[0] != familyV6 {
		return s, fmt.Errorf("sockdiag: a TCP socket of family %d", b[0])
	}
	native := binary.NativeEndian
	return socket{
		family: b[0], state: b[1], local: address(4, 0), remote: address(20, 2),
		device: native.Uint32(id[36:]), cookie: uint64(native.Uint32(id[40:])) | uint64(native.Uint32(id[44:]))<<32,
		queue: native.Uint32(b[56:]), limit: native.Uint32(b[60:]), inode: native.Uint32(b[68:]),
	}, nil
}
