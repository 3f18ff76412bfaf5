//go:build !linux

package demoapp

import (
	"errors"
	"net"
	"net/netip"
)

var errLinuxOnly = errors.New("faults need socket filters, which only Linux has: run the drill on Linux")

func dropSYN(*net.TCPListener) error                 { return errLinuxOnly }
func keepSYN(*net.TCPListener) error                 { return nil }
func handshakes(netip.AddrPort) (int, error)         { return 0, nil }
func takeQueue(*net.TCPListener) ([]net.Conn, error) { return nil, nil }
