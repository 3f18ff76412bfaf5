//go:build linux

package capture

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Exempt lets connections that processes of the node open to a pod pass the rules for what others open: a kubelet's
// probe meets the application's own socket, whatever policies the pod has. Node are the network namespaces of the node's
// processes. Setting it again changes nothing. It stays when the process ends, as the rules do; Remove takes it out.
//
// A program at the interfaces of the pod looks at the first packet of each connection, and marks it for the rules if one
// of those namespaces has the socket that sends it: a socket with exactly these two ends that is connecting (SYN_SENT).
// So what the node masquerades or forwards for others is not exempt, although it has the node's address: the node has no
// such socket. The source address of a packet alone decides nothing, so it cannot be forged.
//
// An interface that the pod gets later has no program until Exempt is called again: policies hold for what comes by it.
// Linux 4.20, with cls_bpf and sch_ingress.
func Exempt(ns *podns.Namespace, node []*podns.Namespace) error {
	return ns.FD(func(fd int) error {
		if err := exempt(fd, node); err != nil {
			return fmt.Errorf("exempt connections of the node's own processes: %w: it needs the capabilities SYS_ADMIN and NET_ADMIN, and a kernel with CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS", err)
		}
		return nil
	})
}

func exempt(fd int, node []*podns.Namespace) error {
	c, err := dialNetlink(unix.NETLINK_ROUTE, fd)
	if err != nil {
		return err
	}
	defer c.Close()
	var ids []int32
	for _, n := range node {
		if err := n.FD(func(of int) error {
			id, err := namespaceID(c, of)
			ids = append(ids, id)
			return err
		}); err != nil {
			return err
		}
	}
	rlimit.RemoveMemlock() // before Linux 5.11 programs count against it; where that fails, the next call does
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "isthmus_exempt", Type: ebpf.SchedCLS, Instructions: exemption(ids)})
	if err != nil {
		return err
	}
	defer program.Close() // the interfaces keep it
	interfaces, err := interfacesOf(c)
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		if err := attach(c, i, program.FD()); err != nil {
			return err
		}
	}
	return nil
}

// removeExempt detaches the programs of Exempt. The empty queueing discipline stays: another program may be there.
func removeExempt(ns *podns.Namespace) error {
	return ns.FD(func(fd int) error {
		c, err := dialNetlink(unix.NETLINK_ROUTE, fd)
		if err != nil {
			return err
		}
		defer c.Close()
		interfaces, err := interfacesOf(c)
		if err != nil {
			return err
		}
		for _, i := range interfaces {
			_, err := c.Execute(netlink.Message{Header: netlink.Header{Type: unix.RTM_DELTFILTER, Flags: netlink.Request | netlink.Acknowledge}, Data: filter(i)})
			if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EOPNOTSUPP) {
				return fmt.Errorf("detach the program that exempts the node's processes: %w", err)
			}
		}
		return nil
	})
}

// namespaceID returns the number of a namespace within the namespace of c, and assigns one if there is none. Of is its
// descriptor.
func namespaceID(c *netlink.Conn, of int) (int32, error) {
	message := func(kind netlink.HeaderType, attributes []byte) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Acknowledge}, Data: append(make([]byte, 4), attributes...)}
	}
	unassigned := int32(unix.NETNSA_NSID_NOT_ASSIGNED)
	_, err := c.Execute(message(unix.RTM_NEWNSID, attributes(unix.NETNSA_FD, uint32(of), unix.NETNSA_NSID, uint32(unassigned))))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, fmt.Errorf("give the node's network namespace a number: %w", err)
	}
	ask := message(unix.RTM_GETNSID, attributes(unix.NETNSA_FD, uint32(of)))
	ask.Header.Flags = netlink.Request
	got, err := c.Execute(ask)
	if err != nil {
		return 0, fmt.Errorf("number of the node's network namespace: %w", err)
	}
	for _, m := range got {
		if len(m.Data) < 4 {
			continue
		}
		list, err := netlink.UnmarshalAttributes(m.Data[4:])
		if err != nil {
			return 0, fmt.Errorf("number of the node's network namespace: %w", err)
		}
		for _, a := range list {
			if a.Type == unix.NETNSA_NSID && len(a.Data) == 4 {
				if id := int32(binary.NativeEndian.Uint32(a.Data)); id >= 0 {
					return id, nil
				}
			}
		}
	}
	return 0, errors.New("number of the node's network namespace: the kernel gives none")
}

// interfacesOf returns the indexes of the interfaces of a namespace, without its loopback interface.
func interfacesOf(c *netlink.Conn) (list []uint32, err error) {
	const headerBytes = 16 // struct ifinfomsg
	got, err := c.Execute(netlink.Message{Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request | netlink.Dump}, Data: make([]byte, headerBytes)})
	if err != nil {
		return nil, fmt.Errorf("list the interfaces of the pod: %w", err)
	}
	for _, m := range got {
		if len(m.Data) < headerBytes {
			continue
		}
		if flags := binary.NativeEndian.Uint32(m.Data[8:]); flags&unix.IFF_LOOPBACK == 0 {
			list = append(list, binary.NativeEndian.Uint32(m.Data[4:]))
		}
	}
	return list, nil
}

// Numbers of linux/pkt_sched.h, linux/pkt_cls.h and linux/rtnetlink.h.
const (
	clsact         = 0xfffffff1 // TC_H_CLSACT
	clsactHandle   = 0xffff0000
	clsactIngress  = 0xfffffff2 // TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)
	filterPriority = 1337       // of the filter, among others at the interface
	filterHandle   = 1
	actUnspecified = -1 // TC_ACT_UNSPEC: the packet goes on to the next filter
	actDirect      = 1  // TCA_BPF_FLAG_ACT_DIRECT
	kind           = 1  // TCA_KIND
	options        = 2  // TCA_OPTIONS
	bpfFD          = 6  // TCA_BPF_FD
	bpfName        = 7  // TCA_BPF_NAME
	bpfFlags       = 8  // TCA_BPF_FLAGS
)

// attach has the program see what comes in by an interface. It replaces one that was attached before.
func attach(c *netlink.Conn, index uint32, program int) error {
	queue := append(traffic(index, clsactHandle, clsact, 0), attribute(kind, []byte("clsact\x00"))...)
	_, err := c.Execute(netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWQDISC, Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl}, Data: queue})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add a clsact queueing discipline to interface %d of the pod: %w", index, err)
	}
	of := attributes(bpfFD, uint32(program), bpfFlags, actDirect)
	of = append(of, attribute(bpfName, []byte("isthmus\x00"))...)
	data := append(filter(index), attribute(kind, []byte("bpf\x00"))...)
	data = append(data, attribute(options|unix.NLA_F_NESTED, of)...)
	_, err = c.Execute(netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWTFILTER, Flags: netlink.Request | netlink.Acknowledge | netlink.Create}, Data: data})
	if err != nil {
		return fmt.Errorf("attach a program to interface %d of the pod: %w", index, err)
	}
	return nil
}

// filter is the header of a message about the filter of Exempt at an interface.
func filter(index uint32) []byte {
	return traffic(index, filterHandle, clsactIngress, filterPriority<<16|uint32(networkOrder(unix.ETH_P_ALL)))
}

// traffic is a struct tcmsg.
func traffic(index, handle, parent, info uint32) []byte {
	b := make([]byte, 4, 20)
	for _, n := range []uint32{index, handle, parent, info} {
		b = binary.NativeEndian.AppendUint32(b, n)
	}
	return b
}

// attribute is one of netlink's, padded to four bytes.
func attribute(kind uint16, data []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	return append(b, make([]byte, -len(b)&3)...)
}

// networkOrder is n as the kernel has it in fields of network byte order.
func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// exemption is the program of Exempt: it marks what opens a TCP connection and comes from a connecting socket of one of
// the namespaces that have these numbers.
func exemption(ids []int32) asm.Instructions {
	const (
		protocol, mark_   = 16, 8 // struct __sk_buff
		socketState       = 72    // struct bpf_sock
		synSent           = 2
		fin, syn, rst     = 1, 2, 4
		ack               = 16
		networkHeader     = 1 // BPF_HDR_START_NET
		ip, tcp, tuple    = -40, -64, -112
		ipBytes, ip6Bytes = 20, 40
		tcpBytes          = 14
	)
	// load reads bytes of the packet, from the network header plus register 2, to the stack.
	load := func(to, size int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, to),
			asm.Mov.Imm(asm.R4, size), asm.Mov.Imm(asm.R5, networkHeader),
			asm.FnSkbLoadBytesRelative.Call(),
			asm.JNE.Imm(asm.R0, 0, "pass"),
		}
	}
	move := func(to, from int16, size asm.Size) asm.Instructions {
		return asm.Instructions{asm.LoadMem(asm.R0, asm.RFP, from, size), asm.StoreMem(asm.RFP, to, asm.R0, size)}
	}
	// opens passes on what opens no connection, and has the ports of the tuple be those of the socket that sent it.
	opens := func(ports int16) (code asm.Instructions) {
		code = append(load(tcp, tcpBytes), asm.LoadMem(asm.R0, asm.RFP, tcp+13, asm.Byte), asm.And.Imm(asm.R0, fin|syn|rst|ack), asm.JNE.Imm(asm.R0, syn, "pass"))
		code = append(code, move(tuple+ports, tcp+2, asm.Half)...)
		return append(code, move(tuple+ports+2, tcp, asm.Half)...)
	}
	look := func(size int32) (code asm.Instructions) {
		for i, id := range ids {
			next := fmt.Sprintf("no socket %d of %d", i, size)
			code = append(code,
				asm.Mov.Reg(asm.R1, asm.R6),
				asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, tuple),
				asm.Mov.Imm(asm.R3, size), asm.Mov.Imm(asm.R4, id), asm.Mov.Imm(asm.R5, 0),
				asm.FnSkLookupTcp.Call(),
				asm.JEq.Imm(asm.R0, 0, next),
				asm.LoadMem(asm.R8, asm.R0, socketState, asm.Word),
				asm.Mov.Reg(asm.R1, asm.R0), asm.FnSkRelease.Call(),
				asm.JEq.Imm(asm.R8, synSent, "mark"),
				asm.Mov.Imm(asm.R0, 0).WithSymbol(next))
		}
		return append(code, asm.Ja.Label("pass"))
	}
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R7, asm.R6, protocol, asm.Word),
		asm.JEq.Imm(asm.R7, int32(networkOrder(unix.ETH_P_IP)), "version 4"),
		asm.JEq.Imm(asm.R7, int32(networkOrder(unix.ETH_P_IPV6)), "version 6"),
		asm.Ja.Label("pass"),
		asm.Mov.Imm(asm.R2, 0).WithSymbol("version 4"),
	}
	code = append(code, load(ip, ipBytes)...)
	code = append(code,
		asm.LoadMem(asm.R0, asm.RFP, ip+9, asm.Byte), asm.JNE.Imm(asm.R0, unix.IPPROTO_TCP, "pass"),
		asm.LoadMem(asm.R0, asm.RFP, ip+6, asm.Half), asm.And.Imm(asm.R0, int32(networkOrder(0x1fff))), asm.JNE.Imm(asm.R0, 0, "pass")) // no first fragment
	code = append(code, move(tuple, ip+16, asm.Word)...)
	code = append(code, move(tuple+4, ip+12, asm.Word)...)
	code = append(code, asm.LoadMem(asm.R2, asm.RFP, ip, asm.Byte), asm.And.Imm(asm.R2, 0x0f), asm.LSh.Imm(asm.R2, 2)) // how long the header is
	code = append(code, opens(8)...)
	code = append(code, look(12)...)
	code = append(code, asm.Mov.Imm(asm.R2, 0).WithSymbol("version 6"))
	code = append(code, load(ip, ip6Bytes)...)
	code = append(code, asm.LoadMem(asm.R0, asm.RFP, ip+6, asm.Byte), asm.JNE.Imm(asm.R0, unix.IPPROTO_TCP, "pass"))
	for i := range int16(2) {
		code = append(code, move(tuple+8*i, ip+24+8*i, asm.DWord)...)
		code = append(code, move(tuple+16+8*i, ip+8+8*i, asm.DWord)...)
	}
	code = append(code, asm.Mov.Imm(asm.R2, ip6Bytes))
	code = append(code, opens(32)...)
	code = append(code, look(36)...)
	return append(code,
		asm.LoadMem(asm.R0, asm.R6, mark_, asm.Word).WithSymbol("mark"),
		asm.And.Imm(asm.R0, ^int32(markMask)), asm.Or.Imm(asm.R0, mark),
		asm.StoreMem(asm.R6, mark_, asm.R0, asm.Word),
		asm.Mov.Imm(asm.R0, actUnspecified).WithSymbol("pass"),
		asm.Return())
}
