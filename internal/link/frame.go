package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// FrameHeader is the bytes of the big-endian length before each frame.
const FrameHeader = 4

// ErrOversized is a frame beyond the limit of its connection.
var ErrOversized = errors.New("frame exceeds the limit")

// ReadFrame reads one length-prefixed frame of at most limit bytes, into buf
// if it is large enough. An empty frame is a heartbeat.
func ReadFrame(r io.Reader, limit int, buf []byte) ([]byte, error) {
	var header [FrameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(header[:])
	if uint64(size) > uint64(limit) {
		return nil, fmt.Errorf("read frame of %d bytes, limit %d: %w", size, limit, ErrOversized)
	}
	if uint32(cap(buf)) < size {
		buf = make([]byte, size)
	}
	buf = buf[:size]
	if _, err := io.ReadFull(r, buf); err != nil {
		return nil, fmt.Errorf("read frame of %d bytes: %w", size, err)
	}
	return buf, nil
}

// AppendFrame appends the header and body of one frame to dst.
func AppendFrame(dst, body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(body))), body...)
}
