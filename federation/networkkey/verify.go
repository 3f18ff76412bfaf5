package networkkey

import (
	"crypto/ed25519"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation/federationpb"
)

// Reason says why a certificate was refused; it is a closed set, for metrics.
type Reason string

const (
	Malformed      Reason = "malformed"
	UnknownNetwork Reason = "unknown_network"
	WrongKey       Reason = "wrong_key"
	Expired        Reason = "expired"
	TooLong        Reason = "too_long"
)

// RefusedError is a certificate that is not believed.
type RefusedError struct {
	Reason  Reason
	Network string // as it says; empty if it cannot be read
	Gateway string
	Detail  string // with the remedy
}

func (e *RefusedError) Error() string {
	if e.Network == "" {
		return "instance certificate: " + e.Detail
	}
	return fmt.Sprintf("instance certificate of gateway %.80q of network %.80q: %s", e.Gateway, e.Network, e.Detail)
}

// Verify reads a signed certificate and checks it by the keys that k knows. The
// error is a [*RefusedError]. Whoever keeps the result must ask [Certificate.Valid]
// again as time passes, and verify again when k is replaced.
func (k Known) Verify(b []byte, now time.Time) (*Certificate, error) {
	if len(b) > MaxCertificate {
		return nil, &RefusedError{Reason: Malformed, Detail: fmt.Sprintf("%d bytes, want at most %d", len(b), MaxCertificate)}
	}
	var signed federationpb.SignedCertificate
	var m federationpb.Certificate
	if err := proto.Unmarshal(b, &signed); err != nil {
		return nil, &RefusedError{Reason: Malformed, Detail: "is not readable: " + err.Error()}
	}
	if err := proto.Unmarshal(signed.GetCertificate(), &m); err != nil {
		return nil, &RefusedError{Reason: Malformed, Detail: "is not readable: " + err.Error()}
	}
	c := &Certificate{
		Network: m.GetNetwork(), Gateway: m.GetGateway(),
		NotBefore: time.Unix(m.GetNotBefore(), 0), NotAfter: time.Unix(m.GetNotAfter(), 0), key: m.GetPublicKey(),
	}
	refuse := func(r Reason, detail string) (*Certificate, error) {
		return nil, &RefusedError{r, c.Network, c.Gateway, detail}
	}
	if CheckName("network", c.Network) != nil || CheckName("gateway", c.Gateway) != nil || len(c.key) != ed25519.PublicKeySize {
		return nil, &RefusedError{Reason: Malformed, Detail: "want names of printable ASCII and a key of 32 bytes"}
	}
	keys, ok := k[c.Network]
	if !ok {
		return refuse(UnknownNetwork, "no key of this network is known: add it to the file of known networks")
	}
	fits := false
	for _, p := range keys {
		if fits {
			break
		}
		c.By = p
		fits = ed25519.Verify(p[:], append([]byte(certificateContext), signed.GetCertificate()...), signed.GetSignature())
	}
	if !fits {
		return refuse(WrongKey, fmt.Sprintf("none of the keys known of this network (fingerprint %s) has signed it: compare `isthmus network show` there with the file of known networks here; if they agree, a key that was forgotten has certified that gateway: restart it", fingerprints(keys)))
	}
	if life := m.GetNotAfter() - m.GetNotBefore(); life <= 0 || life > int64(MaxLifetime/time.Second) {
		return refuse(TooLong, fmt.Sprintf("valid for %d s, want at most %v", life, MaxLifetime))
	}
	c.Instance = InstanceOf(c.Network, c.Gateway, c.key)
	if !c.Valid(now) {
		return refuse(Expired, fmt.Sprintf("ended %v ago by this clock: compare the clocks of both gateways", now.Sub(c.NotAfter).Round(time.Second)))
	}
	return c, nil
}

func fingerprints(keys []Public) string {
	var list []string
	for _, k := range keys {
		list = append(list, k.Fingerprint())
	}
	return strings.Join(list, ", ")
}

// Valid says whether c has not ended yet.
func (c *Certificate) Valid(now time.Time) bool { return !now.After(c.NotAfter.Add(Tolerance)) }
