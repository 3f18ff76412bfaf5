package healthstream

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// proof is what proves an instance of another network, encoded as a Proof.
type proof struct {
	instance record.Instance
	body     []byte
}

func (p proof) equal(o proof) bool { return p.instance == o.instance && bytes.Equal(p.body, o.body) }

// encodeProof returns what proves the instance of v; nil if there is nothing.
func encodeProof(v Voice) []byte {
	if len(v.Certificate) == 0 {
		return nil
	}
	m := &pb.Proof{Certificate: v.Certificate}
	if v.Introduction.Key != "" {
		m.Network = record.ToWire([]record.Entry{v.Introduction})[0]
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil
	}
	return b
}

// appendProof appends a field proofs of Proofs.
func appendProof(dst, proof []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(dst, 1, protowire.BytesType), proof)
}

// proofsMessage makes a StreamMessage of encoded proofs.
func proofsMessage(proofs []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 8, protowire.BytesType), proofs)
}

func holdingsMessage(networks []string) []byte {
	b, err := proto.Marshal(&pb.StreamMessage{Message: &pb.StreamMessage_Holdings{Holdings: &pb.Holdings{Networks: networks}}})
	if err != nil { // a name that is no UTF-8
		return nil
	}
	return b
}
