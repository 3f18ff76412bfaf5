package quic

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/quic-go/qpack"
	quicgo "github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// Whatever a peer sends on its control stream is read to its end, or is a violation. IDs of GOAWAY never increase.
func FuzzControlStream(f *testing.F) {
	settings := emptySettings[1:]
	for _, seed := range [][]byte{
		settings,
		appendFrame(nil, frameSettings, 0x6, 1, 0x21, 0),
		appendFrame(nil, frameSettings, 0x4, 1),
		appendFrame(nil, frameSettings, 0x6, 1, 0x6, 1),
		appendFrame(nil, frameSettings, 0x40),
		appendFrame(settings, frameMaxPushID, 1),
		appendFrame(settings, frameCancelPush, 1),
		slices.Concat(settings, goAway(8), goAway(4), goAway(12)),
		appendFrame(settings, frameGoAway),
		appendFrame(settings, frameGoAway, 0, 0),
		appendFrame(settings, framePing, 1, 2, 3, 4, 5, 6, 7, 8),
		appendFrame(settings, frameWithdraw, 0x40),
		appendFrame(appendFrame(settings, frameBye), frameBye),
		appendFrame(nil, frameData, 'x'),
	} {
		f.Add(true, seed)
		f.Add(false, seed)
	}
	f.Fuzz(func(t *testing.T, client bool, b []byte) {
		if len(b) > 4<<10 {
			return
		}
		last := quicgo.StreamID(quicvarint.Max)
		c := &conn{client: client, ready: make(chan struct{}), bye: make(chan struct{}), goAwayID: quicvarint.Max, sending: true}
		c.onGoAway = func(id quicgo.StreamID) {
			if id > last || client && id%4 != 0 && id != quicvarint.Max {
				t.Errorf("GOAWAY with ID %d behind %d", id, last)
			}
			last = id
		}
		err := c.readControl(newFrames(bytes.NewReader(b)))
		if v := (*violation)(nil); err != io.EOF && !errors.As(err, &v) {
			t.Errorf("got %v, want the end or a violation", err)
		}
	})
}

// Whatever a peer sends on a request stream is read to its end, is a reset, or is a violation. Field sections are bounded.
func FuzzRequestStream(f *testing.F) {
	for _, seed := range [][]byte{
		requestBlock("app.default:80", nil),
		requestBlock("app.default:80", hbone.Header{"te": "trailers"}),
		block(nil, qpack.HeaderField{Name: ":method", Value: "CONNECT"}, qpack.HeaderField{Name: ":path", Value: "/"}),
		appendFrame(responseBlock(200, nil), frameData, 'x'),
		appendFrame(responseBlock(103, nil), frameReserved, 1, 2),
		appendFrame(responseBlock(200, nil), frameReset, 0x41, 0x0c),
		appendFrame(responseBlock(200, nil), frameReset, 1, 2, 3, 4, 5, 6, 7, 8, 9),
		slices.Concat(responseBlock(200, nil), responseBlock(200, nil)),
		appendFrame(nil, frameHeaders, 1, 0, 0x80),
		{frameHeaders, 10, 0, 0},
		{0x40},
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fr := newFrames(bytes.NewReader(b))
		s, err := fr.section()
		size := 0
		for name, value := range s.header {
			size += len(name) + len(value)
		}
		if size > maxHeaderBlock {
			t.Errorf("%d bytes of fields", size)
		}
		for err == nil {
			if err = fr.data(); err == nil {
				_, err = fr.read(make([]byte, 100))
			}
		}
		_, reset := cancelled(err)
		if v := (*violation)(nil); err != io.EOF && !reset && !errors.As(err, &v) {
			t.Errorf("got %v, want the end, a reset or a violation", err)
		}
	})
}
