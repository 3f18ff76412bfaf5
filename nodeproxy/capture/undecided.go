//go:build linux

package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Undecided receives the first packets of connections that a pod opens to destinations without a decision, stores
// decisions, and sends the packets again. It belongs to one process: Rules with its Group lead packets here. Safe for
// concurrent use, but for Next.
type Undecided struct {
	group   uint16
	by      Setter
	watch   *Watch
	packets *netlink.Conn
	raw     map[byte]*os.File // by IP version
	alive   *nftables.Conn    // its table says that this process decides
	ended   sync.Once

	mu      sync.Mutex // held during transactions
	changes *netlink.Conn
	queue   []FirstPacket // read, and not returned yet; Next's alone
}

// groupTries bounds the search for a group of nfnetlink_log that nothing else in the pod uses.
const groupTries = 16

// OpenUndecided opens what decides on connections in a pod, for the process by, before its rules are set. watch is that of
// the rules in the pod; it does not report decisions as changes.
func OpenUndecided(ns *podns.Namespace, by Setter, watch *Watch) (u *Undecided, err error) {
	u = &Undecided{by: by, watch: watch, raw: map[byte]*os.File{}}
	opened := u
	defer func() {
		if err != nil {
			opened.Close()
		}
	}()
	if err := ns.FD(u.openPackets); err != nil {
		return nil, fmt.Errorf("receive first packets of the pod's connections: %w", explainLog(err))
	}
	if err := ns.FD(func(fd int) (err error) { u.changes, err = dialNetlink(unix.NETLINK_NETFILTER, fd); return err }); err != nil {
		return nil, explain(err)
	}
	for version, family := range map[byte]int{4: unix.AF_INET, 6: unix.AF_INET6} {
		f, err := openRaw(ns, family)
		if version == 6 && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPROTONOSUPPORT)) {
			continue // no IPv6 at all
		}
		if err != nil {
			return nil, err
		}
		u.raw[version] = f
	}
	if err := ns.FD(u.announce); err != nil {
		return nil, explain(err)
	}
	return u, nil
}

func explainLog(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: give this process the capability NET_ADMIN", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT):
		return fmt.Errorf("%w: this kernel needs nfnetlink_log (CONFIG_NETFILTER_NETLINK_LOG)", err)
	}
	return err
}

// openPackets binds a socket to a group of nfnetlink_log in the namespace whose descriptor is fd.
func (u *Undecided) openPackets(fd int) (err error) {
	if u.packets, err = dialNetlink(unix.NETLINK_NETFILTER, fd); err != nil {
		return err
	}
	if err := errors.Join(u.packets.SetReadBuffer(packetBuffer), u.packets.SetOption(netlink.NoENOBUFS, true)); err != nil {
		return err
	}
	for range groupTries {
		u.group = uint16(1 + rand.N(0xffff))
		if err = u.bind(); !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EPERM) { // another program has the group
			break
		}
	}
	return err
}

const (
	// packetBuffer holds the packets that wait for this process, at some 5 KiB each. What has no room is dropped, and
	// its kernel sends it again after a second.
	packetBuffer = 2 << 20
	// packetBytes is how much of a packet is received: all of a SYN, with data of TCP Fast Open.
	packetBytes = 2048
)

// Messages of nfnetlink_log, their attributes and values (linux/netfilter/nfnetlink_log.h).
const (
	messagePacket, messageConfig = 0, 1

	cfgCommand, cfgMode, cfgThreshold = 1, 2, 5
	commandBind                       = 1
	copyPacket                        = 2

	packetMarkAttribute, packetOut, packetPayload = 2, 5, 9
)

// bind binds u to its group, has packets copied, and each one delivered at once.
func (u *Undecided) bind() error {
	const modeBytes = 6
	mode := make([]byte, modeBytes)
	binary.BigEndian.PutUint32(mode, packetBytes)
	mode[4] = copyPacket
	for _, a := range []netlink.Attribute{
		{Type: cfgCommand, Data: []byte{commandBind}},
		{Type: cfgMode, Data: mode},
		{Type: cfgThreshold, Data: binaryutil.BigEndian.PutUint32(1)},
	} {
		b, err := netlink.MarshalAttributes([]netlink.Attribute{a})
		if err != nil {
			return err
		}
		header := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, u.group)
		if _, err = u.packets.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_ULOG<<8 | messageConfig, Flags: netlink.Request | netlink.Acknowledge},
			Data:   append(header, b...),
		}); err != nil {
			return err
		}
	}
	return nil
}

// openRaw opens a socket that sends whole packets from a namespace. Nothing is received by it.
func openRaw(ns *podns.Namespace, family int) (f *os.File, err error) {
	err = ns.Do(func() error {
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("send first packets of the pod's connections: %w: give this process the capability NET_RAW", err)
		}
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		f = os.NewFile(uintptr(fd), "raw")
		return nil
	})
	return f, err
}

// announce sets the table by which the rules know that a process decides.
func (u *Undecided) announce(fd int) (err error) {
	t := &nftables.Table{Name: fmt.Sprintf("%s-alive-%x", table, u.by.Socket), Family: nftables.TableFamilyINet}
	var socket *netlink.Conn
	u.alive, err = nftables.New(nftables.WithNetNSFd(fd), nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		socket = c
		return hearKernel(c)
	}))
	if err != nil {
		return err
	}
	if err := own(socket, t); err != nil {
		return err
	}
	b := &batch{c: u.alive, table: t}
	b.rule(u.alive.AddChain(aliveChain(t)), notOurs(), protocol(unix.IPPROTO_TCP), opening(), elsewhere(), setAlive(true))
	return u.alive.Flush()
}

// Group is for Rules.
func (u *Undecided) Group() uint16 { return u.group }

// Next waits for the first packet of a connection. It returns an error when u is closed, and then only.
func (u *Undecided) Next() (FirstPacket, error) {
	for {
		if len(u.queue) > 0 {
			p := u.queue[0]
			u.queue = u.queue[1:]
			return p, nil
		}
		messages, err := u.packets.Receive()
		switch {
		case err == nil:
		case errors.Is(err, os.ErrClosed), errors.Is(err, unix.EBADF):
			return FirstPacket{}, os.ErrClosed
		default:
			time.Sleep(time.Millisecond) // a message that was lost, or cannot be read
		}
		for _, m := range messages {
			if p, err := readPacket(m); err == nil {
				u.queue = append(u.queue, p)
			}
		}
	}
}

// readPacket reads a message of nfnetlink_log.
func readPacket(m netlink.Message) (p FirstPacket, err error) {
	if m.Header.Type != unix.NFNL_SUBSYS_ULOG<<8|messagePacket || len(m.Data) < 4 {
		return p, errNotFirst
	}
	a, err := attributesOf(m.Data[4:])
	if err != nil {
		return p, err
	}
	if p, err = parsePacket(a[packetPayload]); err != nil {
		return p, err
	}
	if b := a[packetMarkAttribute]; len(b) == 4 {
		p.Mark = binary.BigEndian.Uint32(b)
	}
	if b := a[packetOut]; len(b) == 4 {
		p.Out = binary.BigEndian.Uint32(b)
	}
	return p, nil
}

// Decide puts d in force. It returns an error if the rules in the pod are not those of this process.
func (u *Undecided) Decide(d Decision) error {
	lasts := max(d.For.Milliseconds(), 1)
	return u.change(unix.NFT_MSG_NEWSETELEM, netlink.Create, d,
		netlink.Attribute{Type: unix.NFTA_SET_ELEM_TIMEOUT, Data: binaryutil.BigEndian.PutUint64(uint64(lasts))})
}

// Revoke ends the decision d. It is no error that the kernel has none.
func (u *Undecided) Revoke(d Decision) error {
	err := u.change(unix.NFT_MSG_DELSETELEM, 0, d)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (u *Undecided) change(kind uint16, flags netlink.HeaderFlags, d Decision, more ...netlink.Attribute) error {
	version, to := byte(4), d.To.Addr().AsSlice()
	if d.To.Addr().Is6() {
		version = 6
	}
	to = append(binary.BigEndian.AppendUint16(to, d.To.Port()), 0, 0)
	value, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_DATA_VALUE, Data: to}})
	if err != nil {
		return err
	}
	element, err := nested(unix.NFTA_LIST_ELEM, append([]netlink.Attribute{{Type: unix.NLA_F_NESTED | unix.NFTA_SET_ELEM_KEY, Data: value}}, more...)...)
	if err != nil {
		return err
	}
	list, err := nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, element)
	if err != nil {
		return err
	}
	m, err := request(unix.NFPROTO_INET, kind, flags,
		text(unix.NFTA_SET_ELEM_LIST_TABLE, table), text(unix.NFTA_SET_ELEM_LIST_SET, decisionSet(d.Verdict, version, u.by)), list)
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.watch.own(func() error { return transact(u.changes, m) })
}

// Send sends p again, from the interface and with the mark that it had. It meets the rules as it did before.
func (u *Undecided) Send(p FirstPacket) error {
	version := byte(4)
	if p.To.Addr().Is6() {
		version = 6
	}
	f := u.raw[version]
	if f == nil || p.ip == nil {
		return fmt.Errorf("send the first packet to %v: %w", p.To, unix.EOPNOTSUPP)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	to, control := unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(p.To.Addr().AsSlice()[:4])}), control4(p)
	if version == 6 {
		to, control = &unix.SockaddrInet6{Addr: p.To.Addr().As16()}, control6(p)
	}
	if e := raw.Control(func(fd uintptr) {
		err = os.NewSyscallError("sendmsg", unix.Sendmsg(int(fd), p.ip, control, to, unix.MSG_DONTWAIT))
	}); e != nil {
		err = e
	}
	if err != nil && !errors.Is(err, unix.EPERM) { // EPERM: a rule has refused it
		return fmt.Errorf("send the first packet to %v: %w", p.To, err)
	}
	return nil
}

// control4 has the kernel route a packet as the application's: by its interface, source and mark.
func control4(p FirstPacket) []byte {
	info := make([]byte, unix.SizeofInet4Pktinfo)
	binary.NativeEndian.PutUint32(info, p.Out)
	copy(info[4:], p.From.Addr().AsSlice())
	return append(controlMessage(unix.IPPROTO_IP, unix.IP_PKTINFO, info), controlMark(p.Mark)...)
}

func control6(p FirstPacket) []byte {
	info := binary.NativeEndian.AppendUint32(p.From.Addr().AsSlice(), p.Out)
	return append(controlMessage(unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, info), controlMark(p.Mark)...)
}

func controlMark(mark uint32) []byte {
	if mark == 0 {
		return nil
	}
	return controlMessage(unix.SOL_SOCKET, unix.SO_MARK, binary.NativeEndian.AppendUint32(nil, mark))
}

func controlMessage(level, kind int, data []byte) []byte {
	out := make([]byte, unix.CmsgSpace(len(data)))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&out[0]))
	h.Level, h.Type = int32(level), int32(kind)
	h.SetLen(unix.CmsgLen(len(data)))
	copy(out[unix.CmsgLen(0):], data)
	return out
}

// Quit closes the table that shows the rules a running process. First packets to captured destinations without a decision
// are then refused, and do not wait for the next process. Others are still received. u may be nil.
func (u *Undecided) Quit() error {
	if u == nil {
		return nil
	}
	var err error
	u.ended.Do(func() {
		if u.alive != nil {
			err = u.alive.CloseLasting()
		}
	})
	return err
}

// Close closes all sockets. Decisions stay in force until their timers fire. u may be nil.
func (u *Undecided) Close() error {
	if u == nil {
		return nil
	}
	err := u.Quit()
	for _, c := range []*netlink.Conn{u.packets, u.changes} {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	for _, f := range u.raw {
		err = errors.Join(err, f.Close())
	}
	return err
}
