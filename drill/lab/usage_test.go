package lab

import (
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/measure"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

func TestReadingSumsUpTheKinds(t *testing.T) {
	r, err := parseReading(strings.NewReader(`# HELP isthmus_federation_sent_bytes_total Bytes sent, by kind.
# TYPE isthmus_federation_sent_bytes_total counter
isthmus_federation_sent_bytes_total{kind="health"} 100
isthmus_federation_sent_bytes_total{kind="packet"} 1.5e+06
isthmus_federation_received_bytes_total{kind="health"} 7
isthmus_federation_records_total{outcome="newer"} 9
process_resident_memory_bytes 3.145728e+07
`))
	if err != nil || r.sent != 1_500_100 || r.received != 7 || r.resident != 30<<20 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := parseReading(strings.NewReader("process_resident_memory_bytes many\n")); err == nil || !strings.Contains(err.Error(), "process_resident_memory_bytes") {
		t.Errorf("of a value that is none: %v, want the name of the metric", err)
	}
}

func TestUsageIsWhatCountersGrewBy(t *testing.T) {
	a := &armRun{layout: scenario.NewLayout(tinyScenario(t), 7)}
	now := time.Now()
	g, n := a.layout.Gateways[0].Name, a.layout.Nodes[0].Name
	first := map[string]reading{g: {at: now, sent: 100, received: 10}, n: {at: now, sent: 500}}
	last := map[string]reading{g: {at: now.Add(2 * time.Second), sent: 300, received: 30, resident: 5}, n: {at: now.Add(2 * time.Second), sent: 4, resident: 6}}
	seen := map[string]measure.Usage{}
	for _, u := range a.usage(first, last) {
		seen[u.Process] = u
	}
	if u := seen[g]; u.Role != measure.RoleGateway || u.SentPerSecond == nil || *u.SentPerSecond != 100 || *u.ReceivedPerSecond != 10 || u.ResidentBytes != 5 {
		t.Errorf("the gateway: %+v", u)
	}
	if u := seen[n]; u.Role != measure.RoleNodeProxy || u.SentPerSecond != nil || u.ReceivedPerSecond != nil || u.ResidentBytes != 6 {
		t.Errorf("a node proxy that was started anew: %+v, want no bytes per second", u)
	}
	if len(seen) != 2 {
		t.Errorf("%d processes, want those that answered", len(seen))
	}
}
