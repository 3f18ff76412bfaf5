package identity

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/internal/logging"
)

// Reasons for which a handshake does not take place; values of metrics and logs.
const (
	ReasonIdentity    = "identity"     // somebody is not who he should be, or not believed
	ReasonOwnIdentity = "own_identity" // this process has no valid certificate
	ReasonHandshake   = "handshake"    // anything else: a timeout, a lost connection, no TLS
)

// ReasonOf says why a handshake failed.
func ReasonOf(err error) string {
	var own *OwnError
	switch {
	case errors.As(err, &own):
		return ReasonOwnIdentity
	case Untrusted(err), wrongPeer(err), refusedByPeer(err):
		return ReasonIdentity
	}
	return ReasonHandshake
}

// Untrusted reports a peer whose certificate cannot be believed at all: signed
// by another root, expired, of another trust domain. A peer that is merely
// somebody else of the same mesh is not meant.
func Untrusted(err error) bool {
	var chain *ChainError
	var wrong *PeerError
	return errors.As(err, &chain) || errors.As(err, &wrong) && !wrong.Got.MemberOf(wrong.TrustDomain)
}

func wrongPeer(err error) bool {
	var wrong *PeerError
	return errors.As(err, &wrong)
}

// refusedByPeer reports an alert about our certificate, which in TLS 1.3 arrives
// only after our side of the handshake is done. An internal error is what a
// server of crypto/tls says that has no certificate itself: that is its fault.
func refusedByPeer(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" && op.Err.Error() != "tls: internal error"
}

// claimed is who the peer of a failed handshake says it is; zero if it did not
// say, or it is not known.
func claimed(err error) spiffeid.ID {
	var chain *ChainError
	var wrong *PeerError
	switch {
	case errors.As(err, &chain):
		return chain.Got
	case errors.As(err, &wrong):
		return wrong.Got
	}
	return spiffeid.ID{}
}

// cause tells kinds of certificates that are not believed apart, so that a line
// about one does not hide another: how the text begins, without times in it.
func cause(err error) string {
	const length = 12
	var chain *ChainError
	if !errors.As(err, &chain) {
		return ""
	}
	text := chain.Err.Error()
	return text[:min(len(text), length)]
}

const (
	// refusalInterval is the time between two lines about one host, workload and reason.
	refusalInterval = time.Minute
	// hostLines is the most lines about one host in that time.
	hostLines = 10
	// maxClaim and maxReason bound, in bytes, the text of a peer in a line.
	maxClaim, maxReason = 256, 512
)

// Refusals counts and logs handshakes that fail: at most one line per minute for each
// host, workload and reason, and ten for each host. The identity that a peer claims is
// not proved, so it does not distinguish peers. The zero value logs nothing. Safe for
// concurrent use.
type Refusals struct {
	log    zerolog.Logger
	limits logging.PeerLimits // by host
}

// hostOf is the host of an address: every connection has another port, and one host
// may have a whole /64.
func hostOf(address net.Addr) string {
	ap, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return address.String()
	}
	a := ap.Addr().Unmap().WithZone("")
	if a.Is6() {
		p, _ := a.Prefix(64)
		return p.String()
	}
	return a.String()
}

// NewRefusals returns a Refusals that writes to log.
func NewRefusals(log zerolog.Logger) *Refusals {
	return &Refusals{log: log, limits: logging.PeerLimits{Every: refusalInterval, Keys: hostLines - 1, Log: &log}}
}

// Note logs a failed handshake with the peer at address on a hop (one of a closed set),
// and returns its reason. workload is the pod at one end; empty if there is none. A
// failure for another reason than identity is logged at debug level.
func (r *Refusals) Note(hop, workload string, address net.Addr, err error) (reason string) {
	reason = ReasonOf(err)
	key := strings.Join([]string{hop, workload, reason, cause(err)}, " ")
	if reason == ReasonHandshake {
		r.limits.Sample(r.log.Debug(), hostOf(address), key).Str("hop", hop).Str("workload", workload).Stringer("address", address).Err(err).Msg("handshake failed")
		return reason
	}
	e := r.limits.Sample(r.log.Warn(), hostOf(address), key)
	if e == nil {
		return reason
	}
	e.Str("hop", hop).Stringer("address", address).Str("reason", reason)
	if workload != "" {
		e.Str("workload", workload)
	}
	if peer := claimed(err); !peer.IsZero() {
		e.Str("claims", clip(peer.String(), maxClaim))
	}
	e.Str("error", clip(err.Error(), maxReason)).Msg("handshake refused")
	return reason
}

func clip(s string, length int) string {
	if len(s) <= length {
		return s
	}
	return s[:length] + "…"
}
