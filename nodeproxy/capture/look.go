//go:build linux

package capture

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// A pod whose processes may change its nftables can have as many tables, and as much in ours, as it likes. So a table
// of ours is asked for by its name, and little more is read of it than ours can have.

// ourChains are the chains that a table of ours may have.
var ourChains = []string{"output", "refuse", "input", "guard", "decide"}

const (
	// maxSets is how many sets a table of ours has at most beside those of decisions: its owner, its setter, and addresses
	// of both versions of IP.
	maxSets         = 4
	maxDecisionSets = 6
	// maxParts is how much a table may have to be one of a node proxy at all, of a later version, say.
	maxParts = 32
)

// errNotAsOurs is why a table of ours is replaced as a whole: somebody else has put something into it.
var errNotAsOurs = errors.New("the table has more than this node proxy puts into it")

// looking is one look into a namespace. Not safe for concurrent use.
type looking struct {
	socket *netlink.Conn
	buffer []byte
}

func newLooking(c *netlink.Conn) looking { return looking{c, make([]byte, maxAnswer)} }

// look calls f with a look into the namespace whose descriptor is fd.
func look(fd int, f func(looking) error) error {
	c, err := dialNetlink(unix.NETLINK_NETFILTER, fd)
	if err != nil {
		return fmt.Errorf("open netfilter's netlink: %w", err)
	}
	defer c.Close()
	return f(newLooking(c))
}

// lookInto is look, with what the kernel says explained.
func lookInto(ns *podns.Namespace, f func(looking) error) error {
	return ns.FD(func(fd int) error { return explain(look(fd, f)) })
}

// maxAnswer is how much the kernel says at once at most (NLMSG_GOODSIZE of netlink_dump is 32 KiB).
const maxAnswer = 64 << 10

// ask asks for what there is, of which at most limit are read: there may be more then, and the socket is of no use any more.
// That what was asked for is not there is no error.
func (l looking) ask(kind uint16, dump bool, limit int, attributes ...netlink.Attribute) (list []map[uint16][]byte, err error) {
	flags := netlink.HeaderFlags(0)
	if dump {
		flags = netlink.Dump
	}
	m, err := request(unix.NFPROTO_INET, kind, flags, attributes...)
	if err != nil {
		return nil, err
	}
	m.Header.Flags &^= netlink.Acknowledge
	if m, err = l.socket.Send(m); err != nil {
		return nil, err
	}
	raw, err := l.socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	for {
		n, errno := 0, error(nil)
		if err := raw.Read(func(fd uintptr) bool {
			n, _, errno = unix.Recvfrom(int(fd), l.buffer, 0)
			return !errors.Is(errno, unix.EAGAIN) && !errors.Is(errno, unix.EINTR)
		}); err != nil {
			return nil, err
		}
		if errno != nil {
			return nil, os.NewSyscallError("recvfrom", errno)
		}
		messages, err := syscall.ParseNetlinkMessage(l.buffer[:n])
		if err != nil {
			return nil, fmt.Errorf("answer of nftables: %w", err)
		}
		for _, a := range messages {
			switch {
			case a.Header.Seq != m.Header.Sequence:
			case a.Header.Type == unix.NLMSG_DONE:
				return list, nil
			case a.Header.Type == unix.NLMSG_ERROR:
				err := errorOf(a.Data)
				if errors.Is(err, unix.ENOENT) {
					err = nil
				}
				return nil, err
			case len(a.Data) >= 4:
				found, err := attributesOf(a.Data[4:])
				if err != nil {
					return nil, err
				}
				if list = append(list, found); len(list) >= limit || !dump {
					return list, nil
				}
			}
		}
	}
}

// errorOf is what the kernel says with an NLMSG_ERROR.
func errorOf(data []byte) error {
	if len(data) < 4 {
		return unix.EBADMSG
	}
	if n := int32(binary.NativeEndian.Uint32(data)); n != 0 {
		return unix.Errno(-n)
	}
	return nil
}

func attributesOf(b []byte) (map[uint16][]byte, error) {
	list, err := netlink.UnmarshalAttributes(b)
	if err != nil {
		return nil, fmt.Errorf("answer of nftables: %w", err)
	}
	m := map[uint16][]byte{}
	for _, a := range list {
		m[a.Type] = append([]byte(nil), a.Data...)
	}
	return m, nil
}

// table returns how many chains, sets and other things a table of that name has; asOurs is false if it has flags, such as
// one by which the kernel goes by none of its rules.
func (l looking) table(name string) (holds int, asOurs, there bool, err error) {
	list, err := l.ask(unix.NFT_MSG_GETTABLE, false, 1, text(unix.NFTA_TABLE_NAME, name))
	if err != nil || len(list) == 0 {
		return 0, false, false, err
	}
	use, flags := list[0][unix.NFTA_TABLE_USE], list[0][unix.NFTA_TABLE_FLAGS]
	if len(use) != 4 {
		return 0, false, true, fmt.Errorf("answer of nftables: the use of table %s has %d bytes", name, len(use))
	}
	return int(binary.BigEndian.Uint32(use)), len(flags) != 4 || binary.BigEndian.Uint32(flags) == 0, true, nil
}

// chain returns how many rules a chain has, and whether the table has it.
func (l looking) chain(table, name string) (rules int, there bool, err error) {
	list, err := l.ask(unix.NFT_MSG_GETCHAIN, false, 1, text(unix.NFTA_CHAIN_TABLE, table), text(unix.NFTA_CHAIN_NAME, name))
	if err != nil || len(list) == 0 {
		return 0, false, err
	}
	use := list[0][unix.NFTA_CHAIN_USE]
	if len(use) != 4 {
		return 0, true, fmt.Errorf("answer of nftables: the use of chain %s has %d bytes", name, len(use))
	}
	return int(binary.BigEndian.Uint32(use)), true, nil
}

// sets are the names of those of a table, limit of them at most.
func (l looking) sets(table string, limit int) (names []string, err error) {
	list, err := l.ask(unix.NFT_MSG_GETSET, true, limit, text(unix.NFTA_SET_TABLE, table))
	for _, s := range list {
		names = append(names, unix.ByteSliceToString(s[unix.NFTA_SET_NAME]))
	}
	return names, err
}

// rules are the comments of those of a chain, limit of them at most.
func (l looking) rules(table, chain string, limit int) (comments [][]byte, err error) {
	list, err := l.ask(unix.NFT_MSG_GETRULE, true, limit, text(unix.NFTA_RULE_TABLE, table), text(unix.NFTA_RULE_CHAIN, chain))
	for _, r := range list {
		comments = append(comments, r[unix.NFTA_RULE_USERDATA])
	}
	return comments, err
}

// parts are what a table of ours consists of.
type parts struct {
	chains map[string]int // how many rules each has
	sets   []string       // maxParts of them at most
	alien  bool           // it is no node proxy's: it has more than maxParts, or the kernel is not to go by it
}

// parts returns those of a table of that name. If it is not as this version sets it the error is errNotAsOurs.
func (l looking) parts(table string) (p parts, there bool, err error) {
	holds, asOurs, there, err := l.table(table)
	if !there || err != nil {
		return p, there, err
	}
	p.chains, p.alien = map[string]int{}, !asOurs || holds > maxParts
	for _, name := range ourChains {
		rules, is, err := l.chain(table, name)
		if err != nil {
			return p, true, err
		}
		if is {
			p.chains[name] = rules
		}
	}
	if p.sets, err = l.sets(table, maxParts); err != nil {
		return p, true, err
	}
	if p.alien || len(p.sets) > maxSets+maxDecisionSets || holds != len(p.chains)+len(p.sets) {
		return p, true, errNotAsOurs
	}
	return p, true, nil
}

// marks are what the names of sets say of a table.
func marks(sets []string) (owner string, by Setter) {
	for _, s := range sets {
		if mark, ok := strings.CutPrefix(s, ownerMark); ok {
			text, _ := hex.DecodeString(mark)
			owner = string(text)
		}
		var is Setter
		if _, err := fmt.Sscanf(s, setterMark+"%x-%x", &is.Began, &is.Socket); err == nil {
			by = is
		}
	}
	return owner, by
}
