package ledger

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// Statement returns the newest statement of an instance as its origin has
// signed it, with the certificate; nil if nothing is known of it.
func (l *Ledger) Statement(id record.Instance, certificate bool) *pb.SignedStatement {
	i := l.instances[id]
	if i == nil {
		return nil
	}
	m := &pb.SignedStatement{Statement: i.statement, Signature: i.signature}
	if certificate {
		m.Certificate = i.raw
	}
	return m
}

// Have returns what is held of an instance; false if it is not known.
func (l *Ledger) Have(id record.Instance) (count uint64, complete, ok bool) {
	i := l.instances[id]
	if i == nil {
		return 0, false, false
	}
	return i.newest.Count, i.complete, true
}

// Digest returns what is held of every instance that is of use to others.
func (l *Ledger) Digest() []*pb.Have {
	out := make([]*pb.Have, 0, len(l.order))
	for _, i := range l.order {
		out = append(out, i.have())
	}
	return out
}

// Teaches says whether an instance is told of to others who do not know it: it is heard
// here, or was within [Lapse]. What else is held proves nothing to them, and readers that
// taught each other what has ended would never forget it, each taking the other's word for
// news. An instance that lives is heard by whoever relays it: it answers their numbers.
func (l *Ledger) Teaches(id record.Instance) bool {
	i := l.instances[id]
	return i != nil && (i.own || i.phase == Live || i.phase == Silent)
}

// Incomplete returns the part of Digest that is about instances of which not all is held.
func (l *Ledger) Incomplete() (out []*pb.Have) {
	for _, i := range l.order {
		if !i.complete {
			out = append(out, i.have())
		}
	}
	return out
}

func (i *instance) have() *pb.Have {
	return &pb.Have{Instance: i.id[:], Count: i.newest.Count, Complete: i.complete}
}

// Hashes returns the hashes of what is held of an instance, to ask others for
// what differs.
func (l *Ledger) Hashes(id record.Instance) []byte {
	i := l.instances[id]
	if i == nil || i.set.Len() == 0 {
		return nil
	}
	h := i.set.Hashes()
	return h.Bytes()
}

// Chunk returns what differs from have, as much as one message holds; nil if
// this ledger does not hold everything of the instance itself.
func (l *Ledger) Chunk(id record.Instance, have *record.Hashes) *pb.Chunk {
	i := l.instances[id]
	if i == nil || !i.complete {
		return nil
	}
	mine := i.set.Hashes()
	out := &pb.Chunk{Statement: l.Statement(id, true), Hashes: mine.Bytes()}
	size := proto.Size(out) + 64
	for b := range mine {
		if mine[b] == have[b] {
			continue
		}
		bucket := &pb.Bucket{Index: uint32(b), Entries: record.ToWire(i.set.Bucket(b))}
		n := proto.Size(bucket) + 16
		if size+n > record.MaxChunk {
			out.More = true
			break
		}
		size += n
		out.Buckets = append(out.Buckets, bucket)
	}
	return out
}

// OfferChunk takes a part of what an instance says. Each bucket is proven by
// the statement that comes along, whoever sent it.
func (l *Ledger) OfferChunk(m *pb.Chunk, now time.Time) (Outcome, error) {
	s, err := record.DecodeStatement(m.GetStatement().GetStatement())
	if err != nil {
		return Outcome{}, err
	}
	hashes, err := record.ParseHashes(m.GetHashes())
	if err != nil {
		return Outcome{Instance: s.Instance}, err
	}
	i, err := l.find(s, m.GetStatement(), now)
	if err != nil {
		return Outcome{Instance: s.Instance}, err
	}
	refused := func(err error) (Outcome, error) {
		return Outcome{Instance: s.Instance, Network: i.certificate.Network}, err
	}
	switch {
	case i.own:
		return i.outcome(nil), nil
	case s.Count < i.newest.Count && s.Root != i.newest.Root:
		return refused(fmt.Errorf("chunk of statement %d, %d is known: %w", s.Count, i.newest.Count, ErrBehind))
	case !i.certificate.Verify(m.GetStatement().GetStatement(), m.GetStatement().GetSignature()):
		return refused(ErrSignature)
	case hashes.Root() != s.Root:
		return refused(&record.InvalidError{Field: "hashes", Value: s.Instance.String(), Remedy: "do not make up the root of the statement"})
	}
	var gone []Change
	if l.instances[i.id] == nil {
		var ok bool
		if gone, ok = l.room(i); !ok {
			return refused(fmt.Errorf("network %q: %d instances: %w", i.certificate.Network, l.limits.Instances, ErrFull))
		}
		l.add(i)
	}
	news := s.Count > i.newest.Count
	if news {
		i.adopt(s, m.GetStatement(), now)
	}
	changes, err := l.replace(i, m.GetBuckets(), hashes)
	if err != nil {
		i.refused = err
	}
	i.judge(l)
	o := i.outcome(merged(append(append(gone, changes...), l.follow(i, now)...)))
	if o.News = news; news {
		o.Number = s.Number
	}
	return o, err
}

func (l *Ledger) replace(i *instance, buckets []*pb.Bucket, hashes *record.Hashes) (out []Change, err error) {
	// Buckets that nobody fills any more need no content.
	held := i.set.Hashes()
	for b := range hashes {
		if hashes[b] == [record.HashBytes]byte{} && held[b] != hashes[b] {
			buckets = append(buckets, &pb.Bucket{Index: uint32(b)})
		}
	}
	for _, b := range buckets {
		if b.GetIndex() >= record.Buckets {
			return out, &record.InvalidError{Field: "bucket", Value: b.GetIndex(), Remedy: fmt.Sprintf("want below %d", record.Buckets)}
		}
		n := int(b.GetIndex())
		entries := record.FromWire(b.GetEntries())
		if sum := l.networkBytes(i.certificate.Network) + sizeOf(entries) - sizeOf(i.set.Bucket(n)); sum > l.limits.NetworkBytes {
			return out, fmt.Errorf("network %q: %d bytes, limit %d: %w", i.certificate.Network, sum, l.limits.NetworkBytes, ErrFull)
		}
		changed, err := i.set.Replace(n, entries, hashes[n])
		if err != nil {
			return out, err
		}
		for _, key := range changed {
			i.note(key)
			if k, err := record.DecodeKey(key); err == nil {
				out = append(out, Change{Network: i.certificate.Network, Key: k})
			}
		}
	}
	return out, nil
}

func sizeOf(entries []record.Entry) (sum int) {
	for _, e := range entries {
		sum += e.Size()
	}
	return sum
}
