//go:build linux

package main

import (
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
)

// What a connection asks of the application, by its first byte. The application
// answers each with one byte, the same: then the whole path is open.
const (
	verbOnce = 'o' // no more than that: the application closes
	verbUp   = 'u' // takes bytes until FIN, then answers how many (8 bytes, big endian)
	verbDown = 'd' // waits for a byte, then sends until FIN; what it sent is what arrives
	verbEcho = 'e' // echoes until FIN
)

const bulkBuffer = 64 << 10 // bytes per Write of the application and of the load

// serveApp is the application in a server's pod: it never returns.
func serveApp(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go answer(c.(*net.TCPConn))
	}
}

func answer(c *net.TCPConn) {
	defer c.Close()
	var verb [1]byte
	if _, err := io.ReadFull(c, verb[:]); err != nil {
		return
	}
	if _, err := c.Write(verb[:]); err != nil {
		return
	}
	switch verb[0] {
	case verbUp:
		n, err := discard(c)
		if err == nil {
			c.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
		}
	case verbDown:
		if _, err := io.ReadFull(c, verb[:]); err == nil {
			sendUntilFIN(c)
		}
	case verbEcho:
		echoAll(c)
	}
}

// discard reads until FIN and counts. It does not splice: the application of a
// user would not either.
func discard(c net.Conn) (n int64, err error) {
	for buf := make([]byte, bulkBuffer); ; {
		k, err := c.Read(buf)
		n += int64(k)
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

func sendUntilFIN(c net.Conn) {
	var over atomic.Bool
	go func() {
		io.Copy(io.Discard, c)
		over.Store(true)
	}()
	buf := make([]byte, bulkBuffer)
	for !over.Load() {
		if _, err := c.Write(buf); err != nil {
			return
		}
	}
}

func echoAll(c net.Conn) {
	buf := make([]byte, 4<<10)
	for {
		n, err := c.Read(buf)
		if err == nil {
			_, err = c.Write(buf[:n])
		}
		if err != nil {
			return
		}
	}
}
