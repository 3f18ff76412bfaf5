//go:build linux

package main

import (
	"io"
	"net"
)

// serveRelay is the least that any proxy can do: it copies between each
// connection and one of its own to the other address. It never returns.
func serveRelay(address, to string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go relay(c.(*net.TCPConn), to)
	}
}

func relay(near *net.TCPConn, to string) {
	defer near.Close()
	conn, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	far := conn.(*net.TCPConn)
	defer far.Close()
	back := make(chan struct{})
	go func() {
		defer close(back)
		io.Copy(near, far)
		near.CloseWrite()
	}()
	io.Copy(far, near)
	far.CloseWrite()
	<-back
}
