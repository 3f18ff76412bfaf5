package localfault

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// conntrack is the folder of netfilter's settings, for the network namespace of
// the thread that reads it. Tests have another one.
var conntrack = "/proc/sys/net/netfilter"

// TimedOut returns the error of a dial. A timeout becomes a local failure if the
// connection table of the thread's network namespace is full: netfilter drops the
// first packet of each new connection then, and connect(2) returns no errno for it.
func TimedOut(err error) error {
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() || !tableFull() {
		return err
	}
	return New(fmt.Errorf("%w: the connection table of this host is full: raise net.netfilter.nf_conntrack_max", err))
}

// tableFull reports whether at least 95 per cent of the connection table is in
// use. From there on the kernel drops closing connections to make room
// (nf_conntrack_max95). It is false without netfilter.
func tableFull() bool {
	count, max := setting("nf_conntrack_count"), setting("nf_conntrack_max")
	return max > 0 && count*20 >= max*19
}

func setting(name string) uint64 {
	text, err := os.ReadFile(filepath.Join(conntrack, name))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return 0
	}
	return n
}
