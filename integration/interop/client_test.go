package interop

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/isthmus-mesh/isthmus/integration/stock"
)

// patience bounds every exchange that is not bulk: a stock ztunnel itself waits
// 10 s for a connect.
const patience = 15 * time.Second

// socks connects to a virtual address through the SOCKS5 listener of a host's
// proxy. Both proxies take it; a stock one says yes before it has connected. The
// connection has a deadline of patience.
func (w *world) socks(host string, to netip.AddrPort) (*net.TCPConn, error) {
	c, err := w.Dial(host, stock.Socks)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(patience))
	a, port := to.Addr().As4(), to.Port()
	var greeting [2]byte
	var reply [10]byte
	if _, err = c.Write([]byte{5, 1, 0}); err == nil {
		_, err = io.ReadFull(c, greeting[:])
	}
	if err == nil {
		_, err = c.Write([]byte{5, 1, 0, 1, a[0], a[1], a[2], a[3], byte(port >> 8), byte(port)})
	}
	if err == nil {
		_, err = io.ReadFull(c, reply[:])
	}
	if err == nil && reply[1] != 0 {
		err = fmt.Errorf("SOCKS5 reply %d", reply[1])
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("connect to %v from %s: %w", to, host, err)
	}
	return c, nil
}

// open connects and sends the verb.
func (w *world) open(c cell, verb byte) (*net.TCPConn, error) {
	conn, err := w.socks(c.client, c.service)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write([]byte{verb}); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// echo sends text on an open echo connection and waits for it.
func echo(c net.Conn, text string) error {
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil {
		return fmt.Errorf("wait for the echo of %q: %w", text, err)
	}
	if string(got) != text {
		return fmt.Errorf("echo of %q is %q", text, got)
	}
	return nil
}

// who connects and asks for the pod's name: one short connection, ended by the
// application.
func (w *world) who(c cell) (string, error) {
	conn, err := w.open(c, verbWho)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	name, err := io.ReadAll(conn)
	return string(name), err
}

// ends waits for the end of a connection that must bring nothing more.
func ends(c net.Conn) error {
	c.SetDeadline(time.Now().Add(patience))
	n, err := io.Copy(io.Discard, c)
	if n != 0 {
		return fmt.Errorf("%d bytes arrived before the end", n)
	}
	if e, ok := err.(net.Error); ok && e.Timeout() {
		return fmt.Errorf("no end within %v", patience)
	}
	return nil
}
