//go:build linux

package wan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Paths of new connections whose first byte is timed.
var (
	direct = path{"direct", "client-ours", "", ""}
	single = path{"single ours-ours", "client-ours", "shop", "near-ours"}
	double = path{"double ours-ours", "client-ours", "shop", "far-ours"}

	besideStock = []path{
		{"double ours-stock", "client-ours", "shop", "far-stock"},
		{"single stock-ours", "client-stock", "", "near-ours"},
		{"double stock-ours", "client-stock", "", "far-ours"},
		{"single stock-stock", "client-stock", "", "near-stock"},
		{"double stock-stock", "client-stock", "", "far-stock"},
	}
)

// How much of a path was in use before a connection.
const (
	cold   = "cold"    // nothing of it: the client's node proxy has just started, and has its certificate
	newPod = "new pod" // the path, but to another pod
	warm   = "warm"    // the path to this pod
)

const (
	rounds   = 5  // times that the client's node proxy is started
	perRound = 14 // connections each time; enough to meet pods again
	perPlain = 5  // of those that keep no sessions to pods: direct ones and stock clients
)

// bounds of the median, in round trips, for the path through a gateway.
var bounds = map[string]float64{warm: 1.1, cold: 4.1}

func TestFirstByteOfANewConnection(t *testing.T) {
	need(t)
	// A short run times what has bounds, on whatever machine tests run: the
	// fastest connection tells how many round trips there are, and slack leaves
	// out what processors add. The exact bounds are for make wan.
	typical, slack, paths := median, 0.0, []path{direct, single, double}
	switch {
	case testing.Short():
		typical, slack, paths = fastest, 0.4, []path{double}
	case here.ztunnel == "":
		t.Log("without ZTUNNEL no stock proxy is in the table")
	default:
		paths = append(paths, besideStock...)
	}
	var trips []time.Duration // each one TCP handshake over the line
	took := map[string]map[string][]time.Duration{}
	for i := range rounds { // interleaved, so that every path meets the same machine
		t.Logf("round %d of %d", i+1, rounds)
		for _, p := range paths {
			if took[p.name] == nil {
				took[p.name] = map[string][]time.Duration{}
			}
			trips = append(trips, round(t, p, connections(p, i), took[p.name])...)
		}
	}
	trip := median(trips)
	t.Logf("one round trip, by TCP handshakes: median %v, from %v to %v of %d", trip, slices.Min(trips), slices.Max(trips), len(trips))
	inTrips := func(d time.Duration) float64 { return float64(d) / float64(trip) }
	t.Logf("first response byte of a new connection, in round trips:")
	t.Logf("%-20s %-8s %5s %7s %7s %7s", "path", "state", "n", "median", "min", "max")
	for _, p := range paths {
		for _, state := range []string{cold, newPod, warm} {
			if all := took[p.name][state]; len(all) > 0 {
				t.Logf("%-20s %-8s %5d %7.2f %7.2f %7.2f", p, state, len(all), inTrips(median(all)), inTrips(slices.Min(all)), inTrips(slices.Max(all)))
			}
		}
	}
	for state, bound := range bounds {
		all := took[double.name][state]
		if got := inTrips(typical(all)); len(all) < rounds || got > bound+slack {
			t.Errorf("%v, %s: the first byte of %d connections comes after %.2f round trips, want at most %.2f", double, state, len(all), got, bound+slack)
		}
	}
}

// connections is how many to time in a round. A short run looks at a path in use
// only once.
func connections(p path, round int) int {
	switch {
	case testing.Short() && round > 0:
		return 1
	case p == single || p == double:
		return perRound
	default:
		return perPlain
	}
}

// round starts the client's proxy and times n connections one after the other.
// It returns what a round trip took meanwhile.
func round(t *testing.T, p path, n int, took map[string][]time.Duration) (trips []time.Duration) {
	t.Helper()
	knowNeighbours(t, p.host)
	if p != direct {
		here.forget(t, p.host)
		// A stock client fetches its certificate when it first needs it.
		if _, err := here.ask(otherWay(p), 0); err != nil {
			t.Fatalf("%v, once: %v", otherWay(p), err)
		}
	}
	seen := map[int]bool{}
	for i := range n {
		if i%4 == 0 {
			begin := time.Now()
			c, err := here.Dial("client-ours", pods[0]+appPort)
			trips = append(trips, time.Since(begin))
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
		}
		begin := time.Now()
		place, err := here.ask(p, 0)
		d := time.Since(begin)
		if err != nil {
			t.Fatalf("%v, connection %d: %v", p, i+1, err)
		}
		state := warm
		if i == 0 && p != direct {
			state = cold
		} else if p != direct && !seen[place] && (p.host == "client-ours" || p.service == "near-ours") {
			state = newPod
		}
		seen[place] = true
		took[state] = append(took[state], d)
	}
	return trips
}

// otherWay is a path of the same client that has no session in common with p.
func otherWay(p path) path {
	other := path{"the other way", p.host, p.caller, "far-stock"}
	switch far := strings.HasPrefix(p.service, "far-"); {
	case far && p.host == "client-ours":
		other.service = "near-ours"
	case far:
		other.service = "near-stock"
	case p.host == "client-ours":
		other.service = "far-ours"
	}
	return other
}

// knowNeighbours lets a host find the others' Ethernet addresses, which takes a
// round trip that real networks do not have.
func knowNeighbours(t *testing.T, host string) {
	t.Helper()
	for _, address := range append([]string{gatewayAddress, places[len(places)-1] + appPort}, addPort(pods)...) {
		c, err := here.Dial(host, address)
		if err != nil {
			t.Fatal(fmt.Errorf("without any proxy: %w", err))
		}
		c.Close()
	}
}

func addPort(addresses []string) (all []string) {
	for _, a := range addresses {
		all = append(all, a+appPort)
	}
	return all
}

func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

func fastest(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	return slices.Min(all)
}
