//go:build linux

package capture

import (
	"encoding/binary"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// forge has a process of a pod send what is no answer to all sockets of nftables that others have in the pod, while they take it.
func (w *world) forge(t *testing.T, host string) {
	t.Helper()
	must(t, w.In(host, func() error {
		sender, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer unix.Close(sender)
		list, err := os.ReadFile("/proc/thread-self/net/netlink") // sk, protocol, port, …
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(list)) {
			fields := strings.Fields(line)
			port, err := strconv.ParseUint(fields[2], 10, 32)
			if fields[1] != strconv.Itoa(unix.NETLINK_NETFILTER) || err != nil || port == 0 {
				continue
			}
			for _, size := range []int{1024, 16} {
				message := make([]byte, size)
				binary.NativeEndian.PutUint32(message, uint32(size))
				binary.NativeEndian.PutUint16(message[4:], unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN)
				binary.NativeEndian.PutUint16(message[6:], unix.NLM_F_MULTI)
				for unix.Sendto(sender, message, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: uint32(port)}) == nil {
				}
			}
		}
		return nil
	}))
}

// A process of a pod that sends to the node proxy's sockets in that pod, as whoever has NET_ADMIN there may, holds up nobody else,
// and not the end of the node proxy.
func TestAPodThatAnswersInThePlaceOfTheKernelHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 3 {
		w.forge(t, "shop-1")
		w.flush(t, "shop-2")
		w.isCaptured(t, 10*time.Second, "shop-2", hello+":80")
	}
	w.flush(t, "shop-1")
	w.isCaptured(t, 10*time.Second, "shop-1", hello+":80")
	must(t, w.nodes["node-a"].Stop(unix.SIGTERM, 10*time.Second))
}
