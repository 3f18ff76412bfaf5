package federation

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// ErrTooLarge is a message beyond [MaxMessage] or [MaxRecords].
var ErrTooLarge = errors.New("too large")

// Encode returns the wire form of records: a Batches message. Neighbours of
// one origin and network share a batch, so sorted records are the smallest.
func Encode(records []Record) ([]byte, error) {
	m, err := ToBatches(records)
	if err != nil {
		return nil, err
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %d federation records: %w", len(records), err)
	}
	if len(b) > MaxMessage {
		return nil, fmt.Errorf("encode %d federation records: %d bytes, limit %d: %w", len(records), len(b), MaxMessage, ErrTooLarge)
	}
	return b, nil
}

// Decode reads the wire form of records and checks the form of each. Records
// of kinds or states that this version does not know are left out and counted
// in skipped; anything else that is wrong fails the whole message.
func Decode(b []byte) (records []Record, skipped int, err error) {
	if len(b) > MaxMessage {
		return nil, 0, fmt.Errorf("decode federation records: %d bytes, limit %d: %w", len(b), MaxMessage, ErrTooLarge)
	}
	var m federationpb.Batches
	if err := proto.Unmarshal(b, &m); err != nil {
		return nil, 0, fmt.Errorf("decode federation records: %w", err)
	}
	return FromBatches(&m)
}

// ToBatches builds the message that Encode marshals.
func ToBatches(records []Record) (*federationpb.Batches, error) {
	if len(records) > MaxRecords {
		return nil, fmt.Errorf("encode %d federation records: limit %d: %w", len(records), MaxRecords, ErrTooLarge)
	}
	m := &federationpb.Batches{}
	var last *federationpb.Batch
	for _, r := range records {
		if err := r.Validate(); err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
		if last == nil || last.Network != r.Network || last.Origin != r.Origin.Name || last.Incarnation != r.Origin.Incarnation {
			last = &federationpb.Batch{Network: r.Network, Origin: r.Origin.Name, Incarnation: r.Origin.Incarnation}
			m.Batches = append(m.Batches, last)
		}
		last.Records = append(last.Records, toWire(r))
	}
	return m, nil
}

// FromBatches reads what Decode has unmarshalled.
func FromBatches(m *federationpb.Batches) (records []Record, skipped int, err error) {
	total := 0
	for _, b := range m.GetBatches() {
		total += len(b.GetRecords())
	}
	if total > MaxRecords {
		return nil, 0, fmt.Errorf("decode %d federation records: limit %d: %w", total, MaxRecords, ErrTooLarge)
	}
	records = make([]Record, 0, total)
	for _, b := range m.GetBatches() {
		origin := Origin{b.GetOrigin(), b.GetIncarnation()}
		for _, w := range b.GetRecords() {
			r, ok := fromWire(b.GetNetwork(), origin, w)
			if !ok {
				skipped++
				continue
			}
			if err := r.Validate(); err != nil {
				return nil, 0, fmt.Errorf("decode: %w", err)
			}
			records = append(records, r)
		}
	}
	return records, skipped, nil
}

func toWire(r Record) *federationpb.Record {
	w := &federationpb.Record{Sequence: r.Sequence, AgeMs: millis(r.Age), SilenceMs: millis(r.Silence)}
	switch {
	case r.Endpoint != nil:
		f := &federationpb.EndpointFact{
			Endpoint: uint64(r.Endpoint.Endpoint),
			Port:     uint32(r.Endpoint.Port),
			State:    federationpb.FactState(r.Endpoint.State) + 1,
			Reason:   r.Endpoint.Reason,
			Health:   float32(r.Endpoint.Health),
		}
		setUnknown(f, r.unknownFact)
		w.Fact = &federationpb.Record_Endpoint{Endpoint: f}
	case r.Summary != nil:
		f := &federationpb.SummaryFact{
			Service:         r.Summary.Service,
			Port:            uint32(r.Summary.Port),
			Ready:           r.Summary.Ready,
			Healthy:         r.Summary.Healthy,
			ReadyCapacity:   r.Summary.ReadyCapacity,
			HealthyCapacity: r.Summary.HealthyCapacity,
			Draining:        r.Summary.Draining,
		}
		for _, id := range r.Summary.Exceptions {
			f.Exceptions = append(f.Exceptions, uint64(id))
		}
		setUnknown(f, r.unknownFact)
		w.Fact = &federationpb.Record_Summary{Summary: f}
	}
	setUnknown(w, r.unknown)
	return w
}

// fromWire is not ok for a kind or state of a newer version. Ports beyond 16
// bits become zero, which Validate refuses.
func fromWire(network string, origin Origin, w *federationpb.Record) (Record, bool) {
	r := Record{
		Network:  network,
		Origin:   origin,
		Sequence: w.GetSequence(),
		Age:      duration(w.GetAgeMs()),
		Silence:  duration(w.GetSilenceMs()),
		unknown:  string(w.ProtoReflect().GetUnknown()),
	}
	switch f := w.GetFact().(type) {
	case *federationpb.Record_Endpoint:
		e := f.Endpoint
		if e.GetState() < federationpb.FactState_FACT_STATE_HEALTHY || e.GetState() > federationpb.FactState_FACT_STATE_TERMINATING {
			return Record{}, false
		}
		r.unknownFact = string(e.ProtoReflect().GetUnknown())
		r.Endpoint = &EndpointFact{
			Endpoint: mesh.EndpointID(e.GetEndpoint()),
			Port:     port(e.GetPort()),
			State:    FactState(e.GetState() - 1),
			Reason:   e.GetReason(),
			Health:   float64(e.GetHealth()),
		}
	case *federationpb.Record_Summary:
		s := f.Summary
		r.unknownFact = string(s.ProtoReflect().GetUnknown())
		r.Summary = &SummaryFact{
			Service:         s.GetService(),
			Port:            port(s.GetPort()),
			Ready:           s.GetReady(),
			Healthy:         s.GetHealthy(),
			ReadyCapacity:   s.GetReadyCapacity(),
			HealthyCapacity: s.GetHealthyCapacity(),
			Draining:        s.GetDraining(),
		}
		for _, id := range s.GetExceptions() {
			r.Summary.Exceptions = append(r.Summary.Exceptions, mesh.EndpointID(id))
		}
	default:
		return Record{}, false
	}
	return r, true
}

func setUnknown(m proto.Message, unknown string) {
	if unknown != "" {
		m.ProtoReflect().SetUnknown([]byte(unknown))
	}
}

func port(p uint32) uint16 {
	if p > 65535 {
		return 0
	}
	return uint16(p)
}

// millis rounds up: a record must not get younger by being written down.
func millis(d time.Duration) uint64 {
	d = min(max(d, 0), MaxAge)
	return uint64((d + time.Millisecond - 1) / time.Millisecond)
}

func duration(ms uint64) time.Duration {
	return time.Duration(min(ms, uint64(MaxAge/time.Millisecond))) * time.Millisecond
}
