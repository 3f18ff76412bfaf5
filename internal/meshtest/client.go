package meshtest

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// ExchangeTimeout bounds one whole exchange of a client.
const ExchangeTimeout = 20 * time.Second

// Dial connects to a static listener of a pod.
func Dial(at netip.AddrPort) (*net.TCPConn, error) {
	c, err := net.DialTimeout("tcp4", at.String(), ExchangeTimeout)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(ExchangeTimeout))
	return c.(*net.TCPConn), nil
}

// SocksError is a refusal by a SOCKS5 server.
type SocksError struct{ Code byte }

func (e *SocksError) Error() string { return fmt.Sprintf("SOCKS reply code %d", e.Code) }

// Connect connects from the pod through its SOCKS listener to host:port, by name
// or by IPv4 address. A refusal is a *SocksError.
func (p *Pod) Connect(to string) (*net.TCPConn, error) {
	c, err := Dial(p.Socks)
	if err != nil {
		return nil, err
	}
	if err := socks(c, to); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func socks(c net.Conn, to string) error {
	host, port, err := net.SplitHostPort(to)
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return err
	}
	req := []byte{5, 1, 0, 5, 1, 0}
	if a, err := netip.ParseAddr(host); err == nil && a.Is4() {
		req = append(req, 1)
		req = append(req, a.AsSlice()...)
	} else {
		req = append(req, 3, byte(len(host)))
		req = append(req, host...)
	}
	req = binary.BigEndian.AppendUint16(req, uint16(n))
	if _, err := c.Write(req); err != nil {
		return err
	}
	var answer [12]byte // method choice, then the reply
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return err
	}
	if answer[3] != 0 {
		return &SocksError{answer[3]}
	}
	return nil
}

// Hello does one exchange with the demonstration application behind a static
// listener and returns the name of the pod that answered.
func Hello(at netip.AddrPort) (pod string, err error) {
	c, err := Dial(at)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return Ask(c, "1")
}

// Ask sends "hello <n>" and returns the name of the pod that answers.
func Ask(c net.Conn, n string) (pod string, err error) {
	if _, err := fmt.Fprintf(c, "hello %s\n", n); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("read answer (%q so far): %w", line, err)
	}
	f := strings.Fields(line)
	if len(f) != 3 || f[2] != n {
		return "", fmt.Errorf("answer %q: want a name, a port and %q", line, n)
	}
	return f[0], nil
}
