package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/measure"
)

// reading is what the metrics of a process said at one instant.
type reading struct {
	at             time.Time
	sent, received float64 // bytes on connections with gateways and node proxies, about health and exports
	resident       float64 // bytes
}

// maxMetrics is how many bytes of a process's metrics are read.
const maxMetrics = 4 << 20

// readings asks every gateway and node proxy for its metrics. One that does not
// answer, because a fault has stopped it, is left out.
func (a *armRun) readings(ctx context.Context) map[string]reading {
	out := map[string]reading{}
	ask := func(name string, admin netip.AddrPort) {
		if r, err := a.reading(ctx, admin); err == nil {
			out[name] = r
		}
	}
	for _, g := range a.layout.Gateways {
		ask(g.Name, g.Admin)
	}
	for _, n := range a.layout.Nodes {
		ask(n.Name, n.Admin)
	}
	return out
}

func (a *armRun) reading(ctx context.Context, admin netip.AddrPort) (reading, error) {
	resp, err := a.get(ctx, admin, "/metrics")
	if err != nil {
		return reading{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return reading{}, fmt.Errorf("%s/metrics: %s", admin, resp.Status)
	}
	r, err := parseReading(io.LimitReader(resp.Body, maxMetrics))
	r.at = time.Now()
	return r, err
}

// parseReading reads metrics in the text format of Prometheus.
func parseReading(metrics io.Reader) (r reading, err error) {
	lines := bufio.NewScanner(metrics)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		name, _, _ = strings.Cut(name, "{")
		var sum *float64
		switch name {
		case "isthmus_federation_sent_bytes_total":
			sum = &r.sent
		case "isthmus_federation_received_bytes_total":
			sum = &r.received
		case "process_resident_memory_bytes":
			sum = &r.resident
		default:
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return reading{}, fmt.Errorf("%s: %w", name, err)
		}
		*sum += v
	}
	return r, lines.Err()
}

// usage is what each process took between two readings, in the order of the layout.
func (a *armRun) usage(first, last map[string]reading) (out []measure.Usage) {
	add := func(name string, role measure.Role) {
		r, ok := last[name]
		if !ok {
			return
		}
		u := measure.Usage{Process: name, Role: role, ResidentBytes: int64(r.resident)}
		from, ok := first[name]
		if seconds := r.at.Sub(from.at).Seconds(); ok && seconds > 0 && r.sent >= from.sent && r.received >= from.received { // not started anew
			u.SentPerSecond, u.ReceivedPerSecond = new((r.sent-from.sent)/seconds), new((r.received-from.received)/seconds)
		}
		out = append(out, u)
	}
	for _, g := range a.layout.Gateways {
		add(g.Name, measure.RoleGateway)
	}
	for _, n := range a.layout.Nodes {
		add(n.Name, measure.RoleNodeProxy)
	}
	return out
}
