//go:build linux

package capture

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// A node proxy with the socks address of another node's, by mistake, does not start. The first one keeps all connections, with
// the identity of its own workload.
func TestSocksAddressOfAnotherNodeIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.Host("all", "extra", "10.71.3.1"))
	must(t, w.IP("extra", "addr add 10.71.3.2/32 dev eth0"))
	must(t, w.IP("extra", "link set lo up"))
	w.write(t, "mesh.yaml", mesh+`  - {uid: ex-1, namespace: demo, serviceAccount: accountant, network: net-a, node: node-x, addresses: [10.71.3.1]}
  - {uid: ex-2, namespace: demo, serviceAccount: intern, network: net-a, node: node-y, addresses: [10.71.3.2]}
`)
	config := func(node, uid, admin string) string {
		return fmt.Sprintf("node: %s\nnetwork: net-a\n%ssocks: [{workload: %s, listen: \"127.0.0.1:1080\"}]\n", node, w.common(admin), uid)
	}
	w.write(t, "x.yaml", config("node-x", "ex-1", admin))
	w.write(t, "y.yaml", config("node-y", "ex-2", secondary))
	must(t, w.Start(w.process("extra", "x"), w.Ready("extra", admin)))
	if err := w.Start(w.process("extra", "y"), w.Ready("extra", secondary)); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1080") {
		t.Errorf("a node proxy with the socks address of another node's: error %v, want one that names 127.0.0.1:1080", err)
	}
	for range 4 {
		c, err := w.Dial("extra", "127.0.0.1:1080")
		must(t, err)
		must(t, throughSocks(c, hello+":80"))
	}
	time.Sleep(200 * time.Millisecond)
	carried := 0
	for _, l := range w.lines(t, "x") {
		if l["direction"] == "outbound" && l["source"] == "ex-1" && l["result"] == "ok" {
			carried++
		}
	}
	if carried != 4 {
		t.Errorf("the node proxy of node-x carried %d of 4 connections", carried)
	}
}

// throughSocks connects to an IPv4 destination by a SOCKS listener, and reads until the end.
func throughSocks(c net.Conn, to string) error {
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	a, err := net.ResolveTCPAddr("tcp4", to)
	if err != nil {
		return err
	}
	ask := append([]byte{5, 1, 0, 5, 1, 0, 1}, a.IP.To4()...)
	if _, err := c.Write(append(ask, byte(a.Port>>8), byte(a.Port))); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, 12)); err != nil {
		return err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	_, err = io.ReadAll(c)
	return err
}
