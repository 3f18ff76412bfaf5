package admission

import "github.com/isthmus-mesh/isthmus/internal/strictyaml"

// Config is the section of the configuration that bounds the clients of a process.
type Config struct {
	Handshakes int            `yaml:"handshakes" default:"1024" doc:"unfinished TLS handshakes of all clients; one more closes the oldest of the client address that has the most"`
	Identity   IdentityLimits `yaml:"identity"`
	Address    AddressLimits  `yaml:"address"`
}

// Limits bound one identity or address. Zero is no bound.
type Limits struct {
	Sessions         int
	Streams          int
	StreamsPerSecond int
	UnreadBytes      int64
}

// IdentityLimits are Limits with the defaults of an identity.
type IdentityLimits struct {
	Sessions         int   `yaml:"sessions" default:"2000" doc:"concurrent sessions; one more gets GOAWAY(ENHANCE_YOUR_CALM); 0: no bound"`
	Streams          int   `yaml:"streams" default:"20000" doc:"concurrent streams, over all sessions; one more is answered with 503 and isthmus-reason overload; 0: no bound"`
	StreamsPerSecond int   `yaml:"streamsPerSecond" default:"10000" doc:"new streams per second, and in one burst after a pause; one more is answered with 429 and isthmus-reason overload; 0: no bound"`
	UnreadBytes      int64 `yaml:"unreadBytes" default:"268435456" doc:"received bytes of all streams that the receiver has not read yet, checked twice a second. Above it, new streams are refused and the streams with the most such bytes are reset; 0: no bound"`
}

// AddressLimits are Limits with the defaults of an address.
type AddressLimits struct {
	Sessions         int   `yaml:"sessions" default:"10000" doc:"concurrent sessions; one more gets GOAWAY(ENHANCE_YOUR_CALM); 0: no bound"`
	Streams          int   `yaml:"streams" default:"100000" doc:"concurrent streams, over all sessions; one more is answered with 503 and isthmus-reason overload; 0: no bound"`
	StreamsPerSecond int   `yaml:"streamsPerSecond" default:"20000" doc:"new streams per second, and in one burst after a pause; one more is answered with 429 and isthmus-reason overload; 0: no bound"`
	UnreadBytes      int64 `yaml:"unreadBytes" default:"536870912" doc:"received bytes of all streams that the receiver has not read yet, checked twice a second. Above it, new streams are refused and the streams with the most such bytes are reset; 0: no bound"`
}

// DefaultConfig returns limits for a process that serves thousands of clients. An identity
// is a service account: perhaps hundreds of pods on as many nodes, each with a session per
// hundred connections. An address is a node with hundreds of identities, or the NAT gateway
// of a cluster. The limits are far above the load of a client and far below the capacity of
// a machine.
func DefaultConfig() Config {
	return Config{
		Handshakes: 1024,
		Identity:   IdentityLimits{Sessions: 2000, Streams: 20_000, StreamsPerSecond: 10_000, UnreadBytes: 256 << 20},
		Address:    AddressLimits{Sessions: 10_000, Streams: 100_000, StreamsPerSecond: 20_000, UnreadBytes: 512 << 20},
	}
}

// Check adds what is wrong with c, the value of field, to v.
func (c Config) Check(v *strictyaml.Check, field string) {
	if c.Handshakes < 1 {
		v.Fail(field+".handshakes", "%d: must be 1 or more", c.Handshakes)
	}
	Limits(c.Identity).check(v, field+".identity")
	Limits(c.Address).check(v, field+".address")
}

func (l Limits) check(v *strictyaml.Check, field string) {
	for _, f := range []struct {
		name  Limit
		value int64
	}{{Sessions, int64(l.Sessions)}, {Streams, int64(l.Streams)}, {StreamsPerSecond, int64(l.StreamsPerSecond)}, {UnreadBytes, l.UnreadBytes}} {
		if f.value < 0 {
			v.Fail(field+"."+f.name.key(), "%d: must not be negative; 0 is no bound", f.value)
		}
	}
}

// key is the name of the limit in the configuration.
func (l Limit) key() string {
	switch l {
	case StreamsPerSecond:
		return "streamsPerSecond"
	case UnreadBytes:
		return "unreadBytes"
	}
	return string(l)
}
