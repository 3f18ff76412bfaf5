//go:build linux

package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// patience bounds every exchange that is not bulk: a stock ztunnel itself waits
// 10 s for a connect.
const patience = 15 * time.Second

// target is where the load's connections go.
type target struct {
	Address netip.AddrPort
	SOCKS   netip.AddrPort // the SOCKS5 listener that Address is asked of; not valid: dial it
}

// dial connects. Behind a proxy that does not mean that the application has the
// connection.
func (t target) dial() (*net.TCPConn, error) {
	first := t.Address
	if t.SOCKS.IsValid() {
		first = t.SOCKS
	}
	conn, err := net.DialTimeout("tcp", first.String(), patience)
	if err != nil {
		return nil, err
	}
	c := conn.(*net.TCPConn)
	c.SetDeadline(time.Now().Add(patience))
	if t.SOCKS.IsValid() {
		err = socks(c, t.Address)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// open connects and sends the verb; when it returns, the application has
// answered.
func (t target) open(verb byte) (*net.TCPConn, error) {
	c, err := t.dial()
	if err != nil {
		return nil, fmt.Errorf("connect to %v: %w", t.Address, err)
	}
	got := [1]byte{}
	if _, err = c.Write([]byte{verb}); err == nil {
		_, err = io.ReadFull(c, got[:])
	}
	if err == nil && got[0] != verb {
		err = fmt.Errorf("the answer to %q is %q", verb, got[0])
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("open through %v: %w", t.Address, err)
	}
	c.SetDeadline(time.Time{})
	return c, nil
}

// socks asks a SOCKS5 listener for an IPv4 address (RFC 1928).
func socks(c net.Conn, to netip.AddrPort) error {
	var greeting [2]byte
	var reply [10]byte
	a, port := to.Addr().As4(), to.Port()
	_, err := c.Write([]byte{5, 1, 0})
	if err == nil {
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
	return err
}
