package nodeproxy

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// A network whose pods come and go, or that says so, writes a bounded number of bounded
// lines into the log of a node proxy that follows its services, and silences no other's.
func TestANetworkCannotFillTheLogByItsHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		cfg := DefaultConfig()
		cfg.Network = "east"
		p := &Proxy{store: &discovery.Store{}, log: zerolog.New(&log).Level(zerolog.InfoLevel), lines: newKnownLines()}
		p.view = newView(cfg, func(_, _ string) (healthstream.Known, bool) { return healthstream.Known{}, false }, func(string) {}, zerolog.Nop(), NewMetrics(prometheus.NewRegistry()))
		say := func(network string, ports int, healthy uint32) map[uint16]federation.SummaryFact {
			out := map[uint16]federation.SummaryFact{}
			for port := range uint16(ports) {
				f := federation.SummaryFact{Service: shopName, Port: port + 1, Ready: 10_000, Healthy: healthy}
				for id := range 10 * record.MaxExceptions { // of many groups of gateways
					f.Exceptions = append(f.Exceptions, mesh.EndpointID(id+1))
				}
				out[port+1] = f
			}
			return out
		}
		written := func() string { defer log.Reset(); return log.String() }
		before := map[uint16]federation.SummaryFact(nil)
		for i := range 200 {
			now := say("west", record.MaxPorts, uint32(i%2))
			p.tellKnown(healthstream.Change{Service: shopName, Network: "west"}, before, now)
			before = now
		}
		p.tellKnown(healthstream.Change{Service: shopName, Network: "west"}, before, nil)
		text := written()
		if n := strings.Count(text, "\n"); n < 64 || n > 66 {
			t.Errorf("%d lines of one network within a moment; want 64 and a few", n)
		}
		if longest := len(text) / max(1, strings.Count(text, "\n")); longest > 2<<10 || !strings.Contains(text, `"more_exceptions":576`) {
			t.Errorf("lines of %d bytes, such as %.300s; want 64 endpoints and how many more there are", longest, text)
		}
		p.tellKnown(healthstream.Change{Service: shopName, Network: "north"}, nil, say("north", 1, 5))
		if text := written(); !strings.Contains(text, `"network":"north"`) || !strings.Contains(text, `"message":"known"`) {
			t.Errorf("another network's line is %q", text)
		}
		time.Sleep(knownEvery)
		p.tellKnown(healthstream.Change{Service: shopName, Network: "west"}, nil, say("west", 1, 7))
		if text := written(); !strings.Contains(text, `"healthy":7`) {
			t.Errorf("%v later the line of what is known then is %q", knownEvery, text)
		}
	})
}
