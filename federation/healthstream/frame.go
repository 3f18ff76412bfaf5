package healthstream

import (
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/internal/link"
)

// ALPN is what the TLS listener of a gateway offers for health streams.
const ALPN = "isthmus-health/2"

const (
	// maxFrame is the largest frame that is read, in bytes: room for a whole report
	// of [MaxFacts], and for any share of [record.MaxBody].
	maxFrame = 1 << 20

	// chunkBytes is where news of many services is split: small enough that an edge
	// never waits long behind it.
	chunkBytes = 64 << 10
)

// frames is one end of a health stream: messages, each way bounded in time. One
// goroutine may read while another writes.
type frames struct {
	conn    net.Conn
	dead    time.Duration
	metrics *peer.Metrics // counts bytes; nil: nobody does

	writing sync.Mutex
	out     []byte
	in      []byte
}

func (c *frames) write(m *pb.StreamMessage) error {
	body, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("marshal health message: %w", err)
	}
	return c.writeBody(body)
}

// writeBody writes an encoded StreamMessage.
func (c *frames) writeBody(body []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.dead)); err != nil {
		return err
	}
	c.out = link.AppendFrame(c.out[:0], body)
	n, err := c.conn.Write(c.out)
	if c.metrics != nil {
		c.metrics.Bytes.WithLabelValues("health").Add(float64(n))
	}
	if cap(c.out) > 2*chunkBytes {
		c.out = nil // that of a full state is not kept for the life of the stream
	}
	return err
}

func (c *frames) read() (*pb.StreamMessage, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(c.dead)); err != nil {
		return nil, err
	}
	body, err := link.ReadFrame(c.conn, maxFrame, c.in)
	if err != nil {
		return nil, err
	}
	if c.metrics != nil {
		c.metrics.Received.WithLabelValues("health").Add(float64(link.FrameHeader + len(body)))
	}
	if cap(body) <= 4096 {
		c.in = body
	}
	return decode(body)
}

func decode(body []byte) (*pb.StreamMessage, error) {
	m := &pb.StreamMessage{}
	if err := proto.Unmarshal(body, m); err != nil {
		return nil, &peer.MalformedError{Cause: err}
	}
	return m, nil
}

func beat() *pb.StreamMessage {
	return &pb.StreamMessage{Message: &pb.StreamMessage_Beat{Beat: &pb.Beat{}}}
}

func report(r *pb.Report) *pb.StreamMessage {
	return &pb.StreamMessage{Message: &pb.StreamMessage_Report{Report: r}}
}

func ask(targets []Target) *pb.StreamMessage {
	return &pb.StreamMessage{Message: &pb.StreamMessage_Ask{Ask: &pb.Ask{Targets: targetsToWire(targets)}}}
}
