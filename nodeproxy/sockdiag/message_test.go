package sockdiag

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"syscall"
	"testing"
)

// reply is a message as the kernel writes it.
func reply(kind uint16, sequence uint32, body []byte) []byte {
	b := make([]byte, headerBytes, headerBytes+len(body))
	binary.NativeEndian.PutUint32(b, uint32(headerBytes+len(body)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint32(b[8:], sequence)
	return append(b, body...)
}

func inetDiag(family uint8, state uint8, local netip.AddrPort, queue uint32) []byte {
	b := make([]byte, socketBytes)
	b[0], b[1] = family, state
	binary.BigEndian.PutUint16(b[4:], local.Port())
	copy(b[8:24], local.Addr().AsSlice())
	binary.NativeEndian.PutUint32(b[44:], 7)
	binary.NativeEndian.PutUint32(b[48:], 1)
	binary.NativeEndian.PutUint32(b[56:], queue)
	binary.NativeEndian.PutUint32(b[60:], 128)
	return b
}

func TestSocketsAreReadAsTheKernelWritesThem(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.1:8080")
	mapped := netip.AddrPortFrom(netip.AddrFrom16(at.Addr().As16()), 8080)
	b := slices.Concat(
		reply(sockDiag, 9, inetDiag(familyV4, listenState, netip.MustParseAddrPort("10.0.0.2:1"), 0)), // of an earlier question
		reply(sockDiag, 3, inetDiag(familyV4, listenState, at, 5)),
		reply(sockDiag, 3, inetDiag(familyV6, 1, mapped, 0)),
		reply(messageDone, 3, make([]byte, 4)))
	var got []socket
	done, err := decode(b, 3, func(s socket) { got = append(got, s) })
	if !done || err != nil || len(got) != 2 || got[0].local != at || got[1].local != at {
		t.Fatalf("done %t, %v, %+v; want two sockets of %v and the end", done, err, got, at)
	}
	if l := got[0].listener(); l != (Listener{Cookie: 1<<32 | 7, Local: at, Queue: 5, Backlog: 128, family: familyV4}) {
		t.Errorf("%+v", l)
	}
}

func TestAnErrorOfTheKernelIsItsErrno(t *testing.T) {
	e := make([]byte, 4)
	errno := -int32(syscall.ENOENT)
	binary.NativeEndian.PutUint32(e, uint32(errno))
	if done, err := decode(reply(messageError, 1, e), 1, nil); !done || err != syscall.ENOENT {
		t.Errorf("done %t, %v; want ENOENT", done, err)
	}
}

func FuzzDecode(f *testing.F) {
	at := netip.MustParseAddrPort("[2001:db8::1]:8080")
	f.Add(reply(sockDiag, 1, inetDiag(familyV6, listenState, at, 5)), uint32(1))
	f.Add(reply(sockDiag, 0, inetDiag(familyV4, 7, netip.MustParseAddrPort("10.0.0.1:80"), 0)), uint32(0))
	f.Add(reply(messageError, 1, []byte{1, 2, 3, 4}), uint32(1))
	f.Add(append(reply(messageDone, 1, nil), 1, 2, 3), uint32(1))
	f.Fuzz(func(t *testing.T, b []byte, sequence uint32) {
		n := 0
		done, err := decode(b, sequence, func(s socket) {
			n++
			if !s.local.IsValid() || !s.remote.IsValid() {
				t.Errorf("%+v: a socket without an address", s)
			}
		})
		if err != nil && !done {
			t.Error("an error is not the end")
		}
		if n > len(b)/(headerBytes+socketBytes) {
			t.Errorf("%d sockets in %d bytes", n, len(b))
		}
	})
}
