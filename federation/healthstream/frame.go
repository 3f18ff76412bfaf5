package healthstream

import (
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/internal/link"
)

// ALPN is what the TLS listener of a gateway offers for health streams.
const ALPN = "isthmus-health/1"

const (
	maxHealth = 1 << 20 // bytes of one frame

	// chunkBytes is where messages of many records are split: well below
	// maxHealth, and small enough that an edge never waits long behind one.
	chunkBytes = 256 << 10
)

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
	c.out = link.AppendFrame(c.out[:0], body)
	_, err = c.conn.Write(c.out)
	return err
}

func (c *healthConn) read() (*federationpb.HealthMessage, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(c.dead)); err != nil {
		return nil, err
	}
	body, err := link.ReadFrame(c.conn, maxHealth, c.in)
	if err != nil {
		return nil, err
	}
	c.in = body
	m := &federationpb.HealthMessage{}
	if err := proto.Unmarshal(body, m); err != nil {
		return nil, &peer.MalformedError{Cause: err}
	}
	return m, nil
}

// writeRecords sends records in as many messages as their size asks for.
func (c *healthConn) writeRecords(records []federation.Record) error {
	for _, part := range federation.Split(records, chunkBytes) {
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
