package record

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
)

// Limits of one message between gateways.
const (
	MaxStatement = 48 << 10  // bytes: fits a packet of 64 KiB with its signature and certificate
	MaxChunk     = 256 << 10 // bytes
	MaxAnswers   = 2048      // numbers that one statement answers
)

// Statement is what an instance vouches for: by Root, all that it says. One
// without changes is a heartbeat.
type Statement struct {
	Instance  Instance
	Count     uint64 // of the instance's statements; each is larger than the one before
	Watermark uint64 // largest sequence given out
	Root      Root
	// Changes and Removals are all since the watermark Since; with none of them
	// and Since below Watermark they were too many, and are to be asked for.
	Since    uint64
	Changes  []Entry
	Removals []Removal
	// Number was drawn by the instance as a reader of others; Answers are
	// numbers that its own readers have drawn lately.
	Number  uint64
	Answers []uint64
	// Synchronised says that what the instance does not say is withdrawn; before,
	// it may not know yet.
	Synchronised bool
}

// Removal is a record that is no more.
type Removal struct {
	Key      string
	Sequence uint64
}

// Encode returns the bytes to be signed.
func (s *Statement) Encode() ([]byte, error) {
	m := &pb.Statement{
		Instance: s.Instance[:], Count: s.Count, Watermark: s.Watermark, Root: s.Root[:], Since: s.Since,
		Number: s.Number, Answers: s.Answers, Synchronised: s.Synchronised, Changes: ToWire(s.Changes),
	}
	for _, r := range s.Removals {
		m.Removals = append(m.Removals, &pb.Removal{Key: []byte(r.Key), Sequence: r.Sequence})
	}
	b, err := deterministic.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode statement: %w", err)
	}
	if len(b) > MaxStatement {
		return nil, fmt.Errorf("encode statement of %d bytes, limit %d: %w", len(b), MaxStatement, ErrTooLarge)
	}
	return b, nil
}

// DecodeStatement reads what Encode has written and checks its form. The error
// is an [*InvalidError] or [ErrTooLarge].
func DecodeStatement(b []byte) (*Statement, error) {
	if len(b) > MaxStatement {
		return nil, fmt.Errorf("decode statement of %d bytes, limit %d: %w", len(b), MaxStatement, ErrTooLarge)
	}
	var m pb.Statement
	if err := proto.Unmarshal(b, &m); err != nil {
		return nil, &InvalidError{"statement", len(b), "is not readable: " + err.Error()}
	}
	s := &Statement{Count: m.GetCount(), Watermark: m.GetWatermark(), Since: m.GetSince(), Number: m.GetNumber(), Answers: m.GetAnswers(), Synchronised: m.GetSynchronised()}
	switch {
	case len(m.GetInstance()) != len(s.Instance):
		return nil, &InvalidError{"instance", len(m.GetInstance()), "want 16 bytes"}
	case len(m.GetRoot()) != len(s.Root):
		return nil, &InvalidError{"root", len(m.GetRoot()), "want 32 bytes"}
	case s.Count == 0:
		return nil, &InvalidError{"count", 0, "counts start at 1"}
	case s.Since > s.Watermark:
		return nil, &InvalidError{"since", s.Since, fmt.Sprintf("must not exceed the watermark %d", s.Watermark)}
	case len(s.Answers) > MaxAnswers:
		return nil, &InvalidError{"answers", len(s.Answers), fmt.Sprintf("want at most %d", MaxAnswers)}
	}
	copy(s.Instance[:], m.GetInstance())
	copy(s.Root[:], m.GetRoot())
	s.Changes = FromWire(m.GetChanges())
	for _, e := range s.Changes {
		if err := e.Check(); err != nil {
			return nil, err
		}
		if e.Sequence <= s.Since || e.Sequence > s.Watermark {
			return nil, &InvalidError{"sequence", e.Sequence, fmt.Sprintf("want above %d and at most %d", s.Since, s.Watermark)}
		}
	}
	for _, r := range m.GetRemovals() {
		if len(r.GetKey()) > MaxKey || r.GetSequence() <= s.Since || r.GetSequence() > s.Watermark {
			return nil, &InvalidError{"removal", r.GetSequence(), fmt.Sprintf("want a key of at most %d bytes and a sequence above %d and at most %d", MaxKey, s.Since, s.Watermark)}
		}
		s.Removals = append(s.Removals, Removal{string(r.GetKey()), r.GetSequence()})
	}
	return s, nil
}

// StatementOf returns whose statement b says it is, without looking at anything else;
// zero if it does not say.
func StatementOf(b []byte) (id Instance) {
	const instance = 1 // pb.Statement
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return Instance{}
		}
		b = b[n:]
		if field == instance && kind == protowire.BytesType {
			if v, n := protowire.ConsumeBytes(b); n >= 0 && len(v) == len(id) {
				copy(id[:], v)
			}
		}
		if n = protowire.ConsumeFieldValue(field, kind, b); n < 0 {
			return Instance{}
		}
		b = b[n:]
	}
	return id
}

// ToWire returns entries as messages that share their bodies.
func ToWire(entries []Entry) []*pb.Entry {
	var out []*pb.Entry
	for _, e := range entries {
		out = append(out, &pb.Entry{Key: []byte(e.Key), Sequence: e.Sequence, Body: e.Body})
	}
	return out
}

// FromWire returns messages as entries that share their bodies.
func FromWire(entries []*pb.Entry) []Entry {
	var out []Entry
	for _, e := range entries {
		out = append(out, Entry{Key: string(e.GetKey()), Sequence: e.GetSequence(), Body: e.GetBody()})
	}
	return out
}
