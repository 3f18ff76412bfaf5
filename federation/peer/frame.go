package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/federationpb"
)

const (
	frameHeader = 4        // bytes of the big-endian length before each frame
	maxPacket   = 64 << 10 // bytes of one gossip packet
	maxHealth   = 1 << 20  // bytes of one frame of a health stream

	// chunkBytes is where messages of many records are split: well below
	// maxHealth, and small enough that an edge never waits long behind one.
	chunkBytes = 256 << 10
)

// errOversized is a frame beyond the limit of its connection.
var errOversized = errors.New("frame exceeds the limit")

// readFrame reads one length-prefixed frame of at most limit bytes, into buf
// if it is large enough. An empty frame is a heartbeat.
func readFrame(r io.Reader, limit int, buf []byte) ([]byte, error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(header[:])
	if uint64(size) > uint64(limit) {
		return nil, fmt.Errorf("read frame of %d bytes, limit %d: %w", size, limit, errOversized)
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

// appendFrame appends the header and body of one frame to dst.
func appendFrame(dst, body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(body))), body...)
}

// closeAbruptly closes conn without close_notify, which would wait up to five
// seconds on a connection that is stuck. The other end sees an unexpected end,
// as it does when a process dies; our streams have nothing that it could cut.
func closeAbruptly(conn net.Conn) {
	if c, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = c.NetConn()
	}
	conn.Close()
}

// healthConn is one end of a health stream: messages over frames, each way
// bounded in time. Reads and writes may run concurrently.
type healthConn struct {
	conn net.Conn
	dead time.Duration

	writing sync.Mutex
	out     []byte
	in      []byte
}

func (c *healthConn) write(m *federationpb.HealthMessage) error {
	body, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("marshal health message: %w", err)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.dead)); err != nil {
		return err
	}
	c.out = appendFrame(c.out[:0], body)
	_, err = c.conn.Write(c.out)
	return err
}

func (c *healthConn) read() (*federationpb.HealthMessage, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(c.dead)); err != nil {
		return nil, err
	}
	body, err := readFrame(c.conn, maxHealth, c.in)
	if err != nil {
		return nil, err
	}
	c.in = body
	m := &federationpb.HealthMessage{}
	if err := proto.Unmarshal(body, m); err != nil {
		return nil, &malformedError{err}
	}
	return m, nil
}

// writeRecords sends records in as many messages as their size asks for.
func (c *healthConn) writeRecords(records []federation.Record) error {
	for _, part := range chunk(records, chunkBytes) {
		batches, err := federation.ToBatches(part)
		if err != nil {
			return err
		}
		err = c.write(&federationpb.HealthMessage{Message: &federationpb.HealthMessage_Records{Records: batches}})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *healthConn) heartbeat() error {
	return c.write(&federationpb.HealthMessage{Message: &federationpb.HealthMessage_Heartbeat{Heartbeat: &federationpb.Heartbeat{}}})
}

// malformedError is a message that its sender should never have built.
type malformedError struct{ cause error }

func (e *malformedError) Error() string { return "malformed message: " + e.cause.Error() }
func (e *malformedError) Unwrap() error { return e.cause }

// chunk splits records into runs of at most about limit bytes on the wire.
func chunk(records []federation.Record, limit int) [][]federation.Record {
	var parts [][]federation.Record
	start, size := 0, 0
	for i, r := range records {
		n := estimate(r)
		if i > start && size+n > limit {
			parts = append(parts, records[start:i])
			start, size = i, 0
		}
		size += n
	}
	if start < len(records) {
		parts = append(parts, records[start:])
	}
	return parts
}

// estimate is an upper bound of r's bytes on the wire when it begins a batch.
func estimate(r federation.Record) int {
	n := 96 + len(r.Network) + len(r.Origin.Name)
	if r.Endpoint != nil {
		n += len(r.Endpoint.Reason)
	}
	if r.Summary != nil {
		n += len(r.Summary.Service) + 8*len(r.Summary.Exceptions)
	}
	return n
}
