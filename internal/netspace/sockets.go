//go:build linux

package netspace

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// dialTime is more than a stock proxy waits for a connection, 10 s.
const dialTime = 15 * time.Second

// Dial opens a TCP connection from a host to an address with a port.
func (s *Space) Dial(host, address string) (c *net.TCPConn, err error) {
	err = s.In(host, func() error {
		conn, err := net.DialTimeout("tcp", address, dialTime)
		if err == nil {
			c = conn.(*net.TCPConn)
		}
		return err
	})
	return c, err
}

// Listen opens a TCP listener in a host.
func (s *Space) Listen(host, address string) (l net.Listener, err error) {
	err = s.In(host, func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	return l, err
}

// ListenPacket opens a UDP socket in a host.
func (s *Space) ListenPacket(host, address string) (c net.PacketConn, err error) {
	err = s.In(host, func() (err error) {
		c, err = net.ListenPacket("udp", address)
		return err
	})
	return c, err
}

// Get asks an HTTP server in a host, for example the admin server of a process
// there. Any status but 200 is an error.
func (s *Space) Get(host, address, path string) ([]byte, error) {
	c, err := s.Dial(host, address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }, DisableKeepAlives: true}
	r, err := (&http.Client{Transport: t, Timeout: 5 * time.Second}).Get("http://" + address + path)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s%s on %s: status %d: %s", address, path, host, r.StatusCode, text)
	}
	return text, err
}

// Ready asks an HTTP server in a host for the readiness page that all proxies
// have, ours and stock ones.
func (s *Space) Ready(host, address string) func() error {
	return func() error {
		_, err := s.Get(host, address, "/healthz/ready")
		return err
	}
}

// Accepts asks whether somebody listens.
func (s *Space) Accepts(host, address string) func() error {
	return func() error {
		c, err := s.Dial(host, address)
		if err == nil {
			c.Close()
		}
		return err
	}
}
