package gossip

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// ALPN is what the TLS listener of a gateway offers for gossip.
const ALPN = "isthmus-federation/2"

// Keys is what certifies this gateway, and whom it believes.
type Keys struct {
	Network networkkey.Private
	// Known is every network, the own one included.
	Known networkkey.Known
}

// Config is what a gateway needs to take part. All but Metrics and the
// durations are required.
type Config struct {
	Name     string // of the gateway
	Network  string
	Self     spiffeid.ID
	Identity link.Source
	// Keys reads the keys. It is asked again every KeysInterval: networks are
	// linked and unlinked, and keys rotated, while the process runs.
	Keys func() (Keys, error)
	// Peers returns the gateways of all networks but this one itself. It must be
	// quick: a read of a snapshot.
	Peers func() []*mesh.Gateway
	// Doors returns the addresses of other networks' gateways that Peers does not list, one
	// Door for each network. It must not block. If it is nil, no door exists.
	Doors func() []Door
	// DoorFailed, if not nil, is called with each address of Doors that cannot be dialed.
	DoorFailed func(netip.AddrPort)
	Log        zerolog.Logger
	Metrics    *peer.Metrics

	SyncWait     time.Duration // until Synced gives up waiting; default 3 s
	KeysInterval time.Duration // default 10 s

	limits ledger.Limits // tests have smaller ones
	timing timing        // tests shorten it
	dial   link.Dial     // tests have a network of their own
}

// timing bounds every wait of a connection: a peer behind a silent black hole
// must be noticed, and found again when the hole closes.
type timing struct {
	dial     time.Duration // TCP, TLS and the introduction, each
	ping     time.Duration // without a message until an empty one is sent
	silence  time.Duration // without a message until a connection is given up
	idle     time.Duration // the same for one that carries bulk, which has no pings
	lifetime time.Duration // of the certificate of this instance
}

var defaultTiming = timing{
	dial: 1500 * time.Millisecond, ping: time.Second, silence: 2500 * time.Millisecond, idle: 30 * time.Second,
	lifetime: networkkey.MaxLifetime,
}

func (c *Config) setDefaults() error {
	switch {
	case c.Name == "" || c.Network == "":
		return fmt.Errorf("federation: name %q and network %q must both be set", c.Name, c.Network)
	case c.Self.IsZero():
		return errors.New("federation: self: the gateway's SPIFFE ID must be set")
	case c.Identity == nil || c.Peers == nil || c.Keys == nil:
		return errors.New("federation: identity, peers and keys must be set")
	}
	c.SyncWait = orDefault(c.SyncWait, 3*time.Second)
	c.KeysInterval = orDefault(c.KeysInterval, 10*time.Second)
	c.Metrics = c.Metrics.OrDiscard()
	if c.limits == (ledger.Limits{}) {
		c.limits = ledger.DefaultLimits
	}
	if c.timing == (timing{}) {
		c.timing = defaultTiming
	}
	if c.dial == nil {
		c.dial = link.TCP
	}
	return nil
}

func orDefault[T ~int | ~int64](v, d T) T {
	if v <= 0 {
		return d
	}
	return v
}

// dialAddress is where gossip dials g.
func dialAddress(g *mesh.Gateway) netip.AddrPort {
	if g.Federation.IsValid() {
		return g.Federation
	}
	return g.Address
}
