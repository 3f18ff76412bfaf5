//go:build !linux

package sockdiag

import (
	"errors"
	"net/netip"
)

// Table is the TCP sockets of one network namespace: a thing of Linux.
type Table struct{}

// Open fails: there is no sock_diag here.
func Open(Namespace) (*Table, error) { return nil, errors.ErrUnsupported }

// Close does nothing.
func (*Table) Close() {}

// Next fails.
func (*Table) Next(ports []uint16) ([]uint16, error) { return ports, errors.ErrUnsupported }

// Listener fails.
func (*Table) Listener(netip.AddrPort) (Listener, bool, error) {
	return Listener{}, false, errors.ErrUnsupported
}

// Group fails.
func (*Table) Group(Listener) ([]Listener, error) { return nil, errors.ErrUnsupported }

// Waiting fails.
func (*Table) Waiting(Listener) ([]uint64, error) {
	return nil, errors.ErrUnsupported
}

// Connected fails.
func (*Table) Connected(local, remote netip.AddrPort) (bool, error) {
	return false, errors.ErrUnsupported
}

// Open fails.
func (*Table) Open(func(local, remote netip.AddrPort)) error { return errors.ErrUnsupported }

// All fails.
func (*Table) All(func(Connection)) error { return errors.ErrUnsupported }

// Listens fails.
func (*Table) Listens(Connection) (bool, error) { return false, errors.ErrUnsupported }

// End fails.
func (*Table) End(Connection) (bool, error) { return false, errors.ErrUnsupported }
