package identity

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
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
	// refusalInterval is how often refusals of one host, for one workload and reason,
	// are a line of the log.
	refusalInterval = time.Minute
	// hostLines is how many lines one host may have in that time, for all workloads.
	hostLines = 10
	// maxHosts bounds for how many hosts lines are counted. Those beyond share a count.
	maxHosts = 1024
	// maxClaim and maxReason bound, in bytes, what a stranger can put into a line.
	maxClaim, maxReason = 256, 512
)

// Refusals writes a line for handshakes that end because of who somebody is, at
// most once a minute for each host, workload and reason, and ten for each host. Who
// the peer says that it is is not proved, and so does not tell peers apart. The zero
// value logs nothing. Safe for concurrent use.
type Refusals struct {
	log   zerolog.Logger
	limit logging.Limit

	mu    sync.Mutex
	hosts map[string]*hostRefusals
}

// hostRefusals are those of one host since began.
type hostRefusals struct {
	began       time.Time
	lines, held int
}

// allow reports whether host may have one more line, and how many it was denied
// since its last one.
func (r *Refusals) allow(host string, now time.Time) (held int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hosts == nil {
		r.hosts = map[string]*hostRefusals{}
	}
	h := r.hosts[host]
	if h == nil {
		if len(r.hosts) >= maxHosts {
			maps.DeleteFunc(r.hosts, func(_ string, h *hostRefusals) bool { return now.Sub(h.began) >= refusalInterval })
		}
		if len(r.hosts) >= maxHosts {
			host = ""
		}
		if h = r.hosts[host]; h == nil {
			h = &hostRefusals{began: now}
			r.hosts[host] = h
		}
	}
	if now.Sub(h.began) >= refusalInterval {
		h.began, h.lines = now, 0
	}
	if h.lines >= hostLines {
		h.held++
		return 0, false
	}
	held, h.held = h.held, 0
	h.lines++
	return held, true
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
	return &Refusals{log: log, limit: logging.Limit{Every: refusalInterval}}
}

// Note takes in a handshake with the peer at address on a hop (one of a closed
// set), and returns its reason. workload is the pod that it was for or with;
// empty if it was none. What is no matter of identity is a line at debug.
func (r *Refusals) Note(hop, workload string, address net.Addr, err error) (reason string) {
	reason = ReasonOf(err)
	if reason == ReasonHandshake {
		r.log.Debug().Str("hop", hop).Str("workload", workload).Stringer("address", address).Err(err).Msg("handshake failed")
		return reason
	}
	host, now := hostOf(address), time.Now()
	more, ok := r.limit.Allow(strings.Join([]string{hop, workload, reason, host, cause(err)}, " "), now)
	if !ok {
		return reason
	}
	denied, ok := r.allow(host, now)
	if !ok {
		return reason
	}
	more += denied
	e := r.log.Warn().Str("hop", hop).Stringer("address", address).Str("reason", reason)
	if workload != "" {
		e.Str("workload", workload)
	}
	if peer := claimed(err); !peer.IsZero() {
		e.Str("claims", clip(peer.String(), maxClaim))
	}
	if more > 0 {
		e.Int("not_logged", more)
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
