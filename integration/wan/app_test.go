//go:build linux

package wan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/integration/stock"
)

// patience is how long a test waits for one exchange.
const patience = 20 * time.Second

// appPort is where the application listens in every pod. It answers the first byte with the pod's place in places. Then it
// echoes; if the first byte was sink, it discards what it receives, and sends the number of bytes at the end, in 8 bytes.
const appPort = ":8080"

// places are all pods, in the order of the bytes that they answer with.
var places = slices.Concat(pods, spares, []string{"10.71.2.3"})

func (w *world) serveApps() error {
	for i, address := range places {
		host := "server-ours"
		switch {
		case i == len(places)-1:
			host = "server-stock"
		case i >= len(pods):
			host = "spare"
		}
		l, err := w.Listen(host, address+appPort)
		if err != nil {
			return err
		}
		go serve(l, byte(i))
	}
	return nil
}

const sink = 'S'

func serve(l net.Listener, place byte) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			var first [1]byte
			if _, err := io.ReadFull(c, first[:]); err != nil {
				return
			}
			c.Write([]byte{place})
			if first[0] == sink {
				n, _ := io.Copy(io.Discard, c)
				c.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
				return
			}
			io.Copy(c, c)
		}()
	}
}

// path is a way from a client to pods.
type path struct {
	name    string
	host    string // of the client
	caller  string // workload
	service string
}

func (p path) String() string { return p.name }

// connect opens a connection and sends one byte; a client's proxy may still be
// about to connect then.
func (w *world) connect(p path) (net.Conn, error) { return w.connectFor(p, '?') }

// connectFor is connect with the first byte that is given.
func (w *world) connectFor(p path, first byte) (net.Conn, error) {
	if p.host == "client-stock" {
		return w.socks(p)
	}
	entry := entries[[2]string{p.caller, p.service}]
	if p.service == "" { // without any proxy
		entry = pods[0] + appPort
	}
	c, err := w.Dial(p.host, entry)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(patience))
	if _, err = c.Write([]byte{first}); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// socks sends greeting, request and the byte at once: they are answered inside
// the host, in no time.
func (w *world) socks(p path) (net.Conn, error) {
	c, err := w.Dial(p.host, stock.Socks)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(patience))
	var reply [10]byte
	if _, err = c.Write([]byte{5, 1, 0}); err == nil {
		_, err = io.ReadFull(c, reply[:2])
	}
	if err == nil {
		_, err = c.Write([]byte{5, 1, 0, 1, 240, 240, 0, byte(slices.Index(services, p.service)), 0, 80})
	}
	if err == nil {
		_, err = io.ReadFull(c, reply[:])
	}
	if err == nil && reply[1] != 0 {
		err = fmt.Errorf("SOCKS5 reply %d", reply[1])
	}
	if err == nil {
		_, err = c.Write([]byte{'?'})
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("connect to %s from %s: %w", p.service, p.host, err)
	}
	return c, nil
}

// who reads the first byte of a connection: the place that answers.
func who(c net.Conn) (int, error) {
	var place [1]byte
	if _, err := io.ReadFull(c, place[:]); err != nil {
		return 0, fmt.Errorf("wait for the first byte: %w", err)
	}
	if int(place[0]) >= len(places) {
		return 0, fmt.Errorf("place %d answers", place[0])
	}
	return int(place[0]), nil
}

// ask makes one connection, with size more bytes to the application and back.
func (w *world) ask(p path, size int) (place int, err error) {
	c, err := w.connect(p)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if place, err = who(c); err != nil || size == 0 {
		return place, err
	}
	sent, got := make([]byte, size), make([]byte, size)
	for i := range sent {
		sent[i] = byte(i * (place + 1))
	}
	if _, err = c.Write(sent); err == nil {
		_, err = io.ReadFull(c, got)
	}
	if err == nil && !slices.Equal(sent, got) {
		err = errors.New("the echo is another text")
	}
	return place, err
}
