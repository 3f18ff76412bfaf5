package trust

import (
	"crypto/ed25519"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

// Adopted is a forged certificate: by it network calls an instance its own, as gateway, of
// which it has nothing but theirs, the certificate that the instance gives to everybody. It
// is valid for as long as that one.
func Adopted(t testing.TB, by networkkey.Private, network, gateway string, theirs []byte) []byte {
	t.Helper()
	var signed federationpb.SignedCertificate
	var c federationpb.Certificate
	if err := proto.Unmarshal(theirs, &signed); err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(signed.GetCertificate(), &c); err != nil {
		t.Fatal(err)
	}
	c.Network, c.Gateway = network, gateway
	b, err := proto.Marshal(&c)
	if err != nil {
		t.Fatal(err)
	}
	out, err := proto.Marshal(&federationpb.SignedCertificate{Certificate: b, Signature: ed25519.Sign(by.Ed25519(), append([]byte("isthmus-instance/1\x00"), b...))})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
