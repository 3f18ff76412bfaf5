package lines

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
)

func TestDefaultTimeoutIsThatOfPings(t *testing.T) {
	c, h := DefaultConfig(), hbone.DefaultConfig()
	if want := h.PingEvery + h.PingTimeout; c.UserTimeout != want {
		t.Errorf("lines.userTimeout is %v by default, and a session whose PING is not answered ends after %v", c.UserTimeout, want)
	}
}

func TestCheckNamesFieldValueAndRemedy(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string // empty: it is valid
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { *c = Config{CongestionControl: Host} }, ""},
		{func(c *Config) { c.CongestionControl = "" }, `lines.congestionControl: "": want the name of an algorithm, such as bbr, or host`},
		{func(c *Config) { c.CongestionControl = "a name with spaces" }, `lines.congestionControl: "a name with spaces"`},
		{func(c *Config) { c.CongestionControl = "sixteen-and-more" }, `lines.congestionControl: "sixteen-and-more"`},
		{func(c *Config) { c.Transports = map[string]string{"west": Auto, "north": TCP} }, ""},
		{func(c *Config) { c.Transport = "udp" }, `lines.transport: "udp" is unknown: use tcp, quic or auto`},
		{func(c *Config) { c.Transports = map[string]string{"west": "h3"} }, `lines.transports: west: "h3" is unknown: use tcp, quic or auto`},
		{func(c *Config) { c.Transports = map[string]string{"west": ""} }, `lines.transports: west: "" is unknown`},
		{func(c *Config) { c.UnsentBytes = -1 }, "lines.unsentBytes: -1: want 0 to"},
		{func(c *Config) { c.UserTimeout = time.Millisecond }, "lines.userTimeout: 1ms: want 0, or 1s to 24h"},
		{func(c *Config) { c.UserTimeout = -time.Second }, "lines.userTimeout: -1s: want 0, or 1s to 24h"},
		{func(c *Config) { c.MaxSegment = 100 }, "lines.maxSegment: 100: want 0, or 536 to 32767 bytes"},
		{func(c *Config) { c.MaxSegment = 1 << 20 }, "lines.maxSegment: 1048576: want 0, or 536 to 32767 bytes"},
	} {
		config := DefaultConfig()
		c.change(&config)
		var v strictyaml.Check
		config.Check(&v)
		if got := fmt.Sprint(v.Err()); (v.Err() == nil) != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %v, want %q", config, v.Err(), c.want)
		}
	}
}

func TestTransportByNetwork(t *testing.T) {
	c := DefaultConfig()
	if c.ServesQUIC() || c.TransportTo("west") != TCP || (Config{}).TransportTo("west") != TCP {
		t.Error("the default is not TCP")
	}
	c.Transports = map[string]string{"west": Auto}
	if !c.ServesQUIC() || c.TransportTo("west") != Auto || c.TransportTo("north") != TCP {
		t.Error("lines.transports is not used for its network alone")
	}
	c = Config{Transport: QUIC, Transports: map[string]string{"west": TCP}}
	if !c.ServesQUIC() || c.TransportTo("west") != TCP || c.TransportTo("north") != QUIC {
		t.Error("lines.transport is not used for other networks")
	}
}

func TestUnknownNamesNearestNetwork(t *testing.T) {
	c := Config{Transports: map[string]string{"wset": Auto, "west": QUIC, "east": TCP, "mars": QUIC}}
	got := c.Unknown("east", []string{"west", "east", "north", "west"})
	want := []string{
		"lines.transports: mars: no network of that name is known: known are north, west",
		`lines.transports: wset: no network of that name is known: did you mean "west"?`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (Config{Transport: QUIC}).Unknown("east", nil); got != nil {
		t.Errorf("%q without lines.transports", got)
	}
}

func TestOpenFallsBackToHostsCongestionControl(t *testing.T) {
	for _, c := range []struct {
		congestion string
		err        error
		want       string // congestion control
		logged     string
	}{
		{"bbr", nil, "bbr", ""},
		{Host, syscall.ENOENT, "", ""},
		{"bbr", fmt.Errorf("setsockopt: %w", syscall.ENOENT), "", "on the node, load the module tcp_bbr; on the node, add bbr to sysctl net.ipv4.tcp_allowed_congestion_control"},
		{"bbr", fmt.Errorf("setsockopt: %w", syscall.EPERM), "", `"on the node, add bbr to sysctl net.ipv4.tcp_allowed_congestion_control, or set lines.congestionControl: host"`},
	} {
		config := DefaultConfig()
		config.CongestionControl, config.MaxSegment = c.congestion, 1200
		var log bytes.Buffer
		l := config.open(zerolog.New(&log), func(string) error { return c.err })
		if want := (tcp.Line{Congestion: c.want, Unsent: 128 << 10, UserTimeout: 30 * time.Second, MaxSegment: 1200}); l != want {
			t.Errorf("%s, %v: %+v, want %+v", c.congestion, c.err, l, want)
		}
		if got := log.String(); c.logged == "" && got != "" || !strings.Contains(got, c.logged) {
			t.Errorf("%s, %v: logged %q, want %q", c.congestion, c.err, got, c.logged)
		}
	}
}
