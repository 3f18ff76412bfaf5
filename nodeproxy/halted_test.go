package nodeproxy_test

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// Downloads that a pod does not read for a while leave connections of other pods of its
// service account on that node answered, to the only pod that there is far away.
func TestDownloadsThatNobodyReadsLeaveOthersAnswered(t *testing.T) {
	m := meshtest.New(t)
	m.EachNode = func(c *nodeproxy.Config) { c.Diagnose.Disable = "bulk-apart" } // otherwise downloads halt no session of others
	m.Networks("east", "west")
	m.Gateway("east", "gw-1")
	m.Gateway("west", "gw-2")
	m.Service("hello", 80, 8080)
	shop := m.Pod("east", "east-1", "shop-1").Outbound(hello)
	other := m.Pod("east", "east-1", "shop-2").Outbound(hello)
	m.Pod("west", "west-1", "hello-1", "hello").Serve(8080, func(c *net.TCPConn) {
		defer c.Close()
		c.SetWriteBuffer(64 << 10)
		b := make([]byte, 1)
		_, err := io.ReadFull(c, b)
		if err == nil {
			_, err = c.Write(b)
		}
		for buf := make([]byte, 64<<10); err == nil && b[0] == 'L'; {
			_, err = c.Write(buf)
		}
	})
	m.Start()
	ask := func(at netip.AddrPort, what string) (*net.TCPConn, error) {
		c, err := meshtest.Dial(at)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { c.Close() })
		c.SetReadBuffer(64 << 10)
		c.SetDeadline(time.Now().Add(5 * time.Second))
		c.Write([]byte(what))
		_, err = io.ReadFull(c, make([]byte, 1))
		return c, err
	}
	for range 28 {
		c, err := ask(shop, "L")
		if err != nil {
			t.Fatalf("a download: %v", err)
		}
		if _, err := io.CopyN(io.Discard, c, 1<<20); err != nil { // more is sent at a time from then on
			t.Fatalf("a download: %v", err)
		}
	}
	node := m.Process("node proxy east-1")
	meshtest.Eventually(t, "as much is unread as halts a session", func() bool { return node.Metric(t, "isthmus_held_bytes") >= 63<<20 })
	for range 3 {
		if _, err := ask(other, "s"); err != nil {
			t.Fatalf("beside downloads that nobody reads: %v", err)
		}
	}
}
