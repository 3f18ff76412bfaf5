// Package lines has the settings of TCP connections between networks: the section lines of a gateway's and of a
// node proxy's configuration.
package lines

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
)

// Config is the section lines.
type Config struct {
	Transport         string            `yaml:"transport" default:"tcp" doc:"transport of tunnels between node proxies and gateways of other networks: tcp; quic (HTTP/3 over UDP, on the same port number); auto. A gateway with quic or auto serves both. A node proxy with quic opens sessions for small messages over QUIC only. With auto, it does so while TCP loses packets and UDP passes. Destinations known for bulk use TCP; the first transfer to one may run on QUIC" env:"ISTHMUS_LINES_TRANSPORT"`
	Transports        map[string]string `yaml:"transports" doc:"transport by name of the other network, where lines.transport does not fit, such as west: auto. A gateway serves QUIC to clients of all networks if any of them is quic or auto; by name it only sets to which networks isthmus check tests UDP"`
	CongestionControl string            `yaml:"congestionControl" default:"bbr" doc:"congestion control algorithm of TCP connections between networks, such as bbr or cubic. If the kernel does not offer it to this process, the host's default is used, and the log names the sysctl that offers it. host: always the host's default" env:"ISTHMUS_LINES_CONGESTION_CONTROL"`
	UnsentBytes       int               `yaml:"unsentBytes" default:"131072" doc:"unsent bytes per connection between networks that the kernel may buffer (TCP_NOTSENT_LOWAT), the most that small messages queue behind. 0: no bound" env:"ISTHMUS_LINES_UNSENT_BYTES"`
	UserTimeout       time.Duration     `yaml:"userTimeout" default:"30s" doc:"time that sent data of a connection between networks may stay unacknowledged before the kernel closes the connection (TCP_USER_TIMEOUT). The default is the longest time until a session with an unanswered PING is closed. 0: the kernel's default, about 15 minutes" env:"ISTHMUS_LINES_USER_TIMEOUT"`
	MaxSegment        int               `yaml:"maxSegment" doc:"largest TCP payload of a packet between networks, in bytes (TCP_MAXSEG), in both directions: for paths that drop large packets and send no ICMP error. 0: by the MTU of the path" env:"ISTHMUS_LINES_MAX_SEGMENT"`
}

// Values of lines.transport.
const (
	TCP  = "tcp"
	QUIC = "quic"
	Auto = "auto"
)

// TransportTo returns the transport for tunnels to another network.
func (c Config) TransportTo(network string) string {
	return cmp.Or(c.Transports[network], c.Transport, TCP)
}

// Unknown returns a problem for each network in Transports that is neither own nor known.
func (c Config) Unknown(own string, known []string) (problems []string) {
	known = slices.Compact(slices.Sorted(slices.Values(known)))
	known = slices.DeleteFunc(known, func(n string) bool { return n == own })
	for _, network := range slices.Sorted(maps.Keys(c.Transports)) {
		if network != own && !slices.Contains(known, network) {
			problems = append(problems, fmt.Sprintf("lines.transports: %s: no network of that name is known: %s", network, strictyaml.Suggest(network, known)))
		}
	}
	return problems
}

// Has reports whether any network has one of the transports.
func (c Config) Has(transports ...string) bool {
	if slices.Contains(transports, c.Transport) {
		return true
	}
	for _, t := range c.Transports {
		if slices.Contains(transports, t) {
			return true
		}
	}
	return false
}

// ServesQUIC reports whether a gateway serves QUIC beside TCP.
func (c Config) ServesQUIC() bool { return c.Has(QUIC, Auto) }

// Host is the CongestionControl that leaves the host's own.
const Host = "host"

// The kernel accepts segments of 88 to 32767 bytes. The least here is what each IPv4 host receives (RFC 1122).
const (
	leastSegment = 536
	mostSegment  = 32767
)

// DefaultConfig returns what a key that is left out means.
func DefaultConfig() Config {
	return Config{Transport: TCP, CongestionControl: "bbr", UnsentBytes: 128 << 10, UserTimeout: 30 * time.Second}
}

// Check names each field that cannot be, its value and the remedy.
func (c Config) Check(v *strictyaml.Check) {
	transports := []string{TCP, QUIC, Auto}
	if c.Transport != "" && !slices.Contains(transports, c.Transport) {
		v.Fail("lines.transport", "%.40q is unknown: use %s, %s or %s", c.Transport, TCP, QUIC, Auto)
	}
	for _, network := range slices.Sorted(maps.Keys(c.Transports)) {
		if t := c.Transports[network]; !slices.Contains(transports, t) {
			v.Fail("lines.transports", "%s: %.40q is unknown: use %s, %s or %s", network, t, TCP, QUIC, Auto)
		}
	}
	const most = 16 // TCP_CA_NAME_MAX, with its final zero
	if n := c.CongestionControl; n == "" || len(n) >= most || strings.ContainsFunc(n, func(r rune) bool { return r <= ' ' || r > '~' }) {
		v.Fail("lines.congestionControl", "%.40q: want the name of an algorithm, such as bbr, or %s", n, Host)
	}
	if c.UnsentBytes < 0 || c.UnsentBytes > 1<<30 {
		v.Fail("lines.unsentBytes", "%d: want 0 to %d bytes", c.UnsentBytes, 1<<30)
	}
	if c.UserTimeout != 0 && (c.UserTimeout < time.Second || c.UserTimeout > 24*time.Hour) {
		v.Fail("lines.userTimeout", "%v: want 0, or 1s to 24h", c.UserTimeout)
	}
	if c.MaxSegment != 0 && (c.MaxSegment < leastSegment || c.MaxSegment > mostSegment) {
		v.Fail("lines.maxSegment", "%d: want 0, or %d to %d bytes", c.MaxSegment, leastSegment, mostSegment)
	}
}

// Open returns how connections are set up. It logs once if the kernel does not offer the congestion control.
func (c Config) Open(log zerolog.Logger) tcp.Line { return c.open(log, tcp.Offers) }

func (c Config) open(log zerolog.Logger, offers func(string) error) tcp.Line {
	l := tcp.Line{Congestion: c.CongestionControl, Unsent: c.UnsentBytes, UserTimeout: c.UserTimeout, MaxSegment: c.MaxSegment}
	if l.Congestion == Host {
		l.Congestion = ""
		return l
	}
	if err := offers(l.Congestion); err != nil {
		log.Warn().Str("congestion_control", l.Congestion).Err(err).Str("remedy", remedy(l.Congestion, err)).Msg("congestion control unavailable")
		l.Congestion = ""
	}
	return l
}

// remedy is how the nodes of a cluster offer an algorithm to processes without CAP_NET_ADMIN.
func remedy(congestion string, err error) string {
	allow := "on the node, add " + congestion + " to sysctl net.ipv4.tcp_allowed_congestion_control, or set lines.congestionControl: " + Host
	if errors.Is(err, syscall.ENOENT) {
		return "on the node, load the module tcp_" + congestion + "; " + allow
	}
	return allow
}
