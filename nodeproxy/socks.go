package nodeproxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/route"
)

// socksTimeout bounds the SOCKS5 greeting and request of an application.
const socksTimeout = 10 * time.Second

// SOCKS5 reply codes (RFC 1928 §6).
const (
	socksOK              = 0x00
	socksFailure         = 0x01
	socksNotAllowed      = 0x02
	socksHostUnreachable = 0x04
	socksRefused         = 0x05
	socksBadCommand      = 0x07
	socksBadAddress      = 0x08
)

// socks serves one application connection as SOCKS5: no authentication, CONNECT
// only. The reply is sent when the far application has accepted, so that its
// code is true.
func (p *Proxy) socks(s Socks) serve {
	return func(ctx context.Context, app *net.TCPConn) func(context.Context) {
		app.SetDeadline(time.Now().Add(socksTimeout))
		in := socksReaders.Get().(*bufio.Reader)
		in.Reset(app)
		flow, code, err := socksRequest(in, app)
		already, _ := in.Peek(in.Buffered()) // of a client that did not wait for the reply
		already = bytes.Clone(already)
		in.Reset(nil)
		socksReaders.Put(in)
		if err != nil {
			if code != socksOK {
				socksReply(app, code)
			}
			p.peerLines.Sample(p.log.Debug(), s.Workload, "socks").Stringer("from", app.RemoteAddr()).Err(err).Msg("bad SOCKS request")
			app.Close()
			return nil
		}
		app.SetDeadline(time.Time{})
		flow.Host = canonicalHost(p.store.Current(), flow.Host, p.domain)
		return p.carry(ctx, app, s.Workload, flow, already,
			func() error { return socksReply(app, socksOK) },
			func(reason string) { socksReply(app, socksCode(reason)) })
	}
}

func socksCode(reason string) byte {
	switch header.Reason(reason) {
	case header.ReasonRefused, header.ReasonReset:
		return socksRefused
	case header.ReasonTimeout, header.ReasonUnreachable, header.ReasonNoEndpoint, header.ReasonUnknownService, reasonNoRoute:
		return socksHostUnreachable
	case header.ReasonDenied, header.ReasonNotExported:
		return socksNotAllowed
	}
	return socksFailure
}

func socksReply(w io.Writer, code byte) error {
	_, err := w.Write([]byte{5, code, 0, 1, 0, 0, 0, 0, 0, 0})
	return err
}

// socksReaders hold greeting and request, each taken in with one read.
var socksReaders = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 1024) }}

// socksRequest reads greeting and request from r and answers the first on w.
// With an error, code is the reply to send, or socksOK for none.
func socksRequest(r io.Reader, w io.Writer) (f route.Flow, code byte, err error) {
	var b [257]byte
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return f, socksOK, err
	}
	if b[0] != 5 {
		return f, socksOK, fmt.Errorf("version %d: want SOCKS 5", b[0])
	}
	methods := b[2 : 2+int(b[1])]
	if _, err := io.ReadFull(r, methods); err != nil {
		return f, socksOK, err
	}
	none := false
	for _, m := range methods {
		none = none || m == 0
	}
	if !none {
		w.Write([]byte{5, 0xff})
		return f, socksOK, errors.New("the client insists on authentication: allow the method \"none\"")
	}
	if _, err := w.Write([]byte{5, 0}); err != nil {
		return f, socksOK, err
	}
	var h [4]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return f, socksOK, err
	}
	if h[0] != 5 || h[1] != 1 {
		return f, socksBadCommand, fmt.Errorf("command %d: only CONNECT is served", h[1])
	}
	host, code, err := socksHost(r, h[3])
	if err != nil {
		return f, code, err
	}
	var port [2]byte
	if _, err := io.ReadFull(r, port[:]); err != nil {
		return f, socksOK, err
	}
	n := binary.BigEndian.Uint16(port[:])
	if host == "" || n == 0 {
		return f, socksBadAddress, fmt.Errorf("destination %q port %d: want a name or address and a port within 1 and 65535", host, n)
	}
	return flowTo(host, n), socksOK, nil
}

func socksHost(r io.Reader, kind byte) (host string, code byte, err error) {
	size := 0
	switch kind {
	case 1:
		size = 4
	case 4:
		size = 16
	case 3:
		var l [1]byte
		if _, err := io.ReadFull(r, l[:]); err != nil {
			return "", socksOK, err
		}
		size = int(l[0])
	default:
		return "", socksBadAddress, fmt.Errorf("address type %d is unknown", kind)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return "", socksOK, err
	}
	if kind == 3 {
		return string(b), socksOK, nil
	}
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap().String(), socksOK, nil
}
