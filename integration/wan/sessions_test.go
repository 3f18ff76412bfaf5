//go:build linux

package wan

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"strings"
	"testing"
	"time"
)

// A client that keeps sessions to pods must not prefer some. Until it has one with each,
// it does: those come first that the gateway has named first.
func TestLoadIsSpreadEvenlyOverPods(t *testing.T) {
	need(t)
	here.forget(t, double.host)
	const off = 0.15 // draws are quasi-random: they differ less than coins do
	n := 1200
	if testing.Short() {
		n = 600
	}
	before := outerStreams(t)
	begin := time.Now()
	for _, err := range here.many(double, n/2, 32, 0).errs(begin) {
		t.Error(err)
	}
	c := here.many(double, n, 32, 0)
	for _, err := range c.errs(begin) {
		t.Error(err)
	}
	t.Logf("%v, on %v streams of the gateway", c, outerStreams(t)-before)
	places := c.places()
	for i := range pods {
		if share := float64(places[i]) * float64(len(pods)) / float64(n); math.Abs(share-1) > off {
			t.Errorf("pod %d got %d of %d connections, want %d ± %.0f %%", i, places[i], n, n/len(pods), 100*off)
		}
	}
}

// outerStreams is how many streams the gateway in the west has forwarded.
func outerStreams(t *testing.T) (n float64) {
	t.Helper()
	const name = "isthmus_tunnels_opened_total "
	text, err := here.Get("gateway", admin, "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, name); ok {
			fmt.Sscan(rest, &n)
			return n
		}
	}
	t.Fatalf("no %sin\n%s", name, text)
	return 0
}

// connection is a log line of a gateway or a node proxy.
type connection struct {
	Message, Peer, Workload string
	Started                 time.Time
	Bytes                   int64 `json:"bytes_received"`
}

// logged are the connections in a log that began after an instant.
func logged(t *testing.T, name string, after time.Time) (all []connection) {
	t.Helper()
	f, err := os.Open(here.log(name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var c connection
		if err := json.Unmarshal(lines.Bytes(), &c); err == nil && (c.Message == "connection" || c.Message == "tunnel") && c.Started.After(after) {
			all = append(all, c)
		}
	}
	return all
}

// A session says who its client is, by its certificate: what the pods' node
// proxy and the gateway see of two clients of one node must never be mixed. Each
// client sends another number of bytes, so that a connection tells who made it.
func TestClientsOfANodeShareNoSession(t *testing.T) {
	need(t)
	const n = 120
	till := path{"double till", "client-ours", "till", "far-ours"}
	sizes := map[string]int64{ // what a pod gets, by who must have sent it
		"spiffe://cluster.local/ns/demo/sa/shop": 1 + 10,
		"spiffe://cluster.local/ns/demo/sa/till": 1 + 20,
	}
	here.forget(t, double.host)
	begin, other := time.Now(), make(chan crowd)
	go func() { other <- here.many(till, n, 8, 20) }()
	c := here.many(double, n, 8, 10)
	for _, err := range append(c.errs(begin), (<-other).errs(begin)...) {
		t.Error(err)
	}
	// The end of the client ends its sessions, and the gateway logs them.
	here.forget(t, double.host)
	want := map[[2]string]bool{}
	seen := map[string]int{}
	waitFor(t, "the server logs all connections", func() error {
		clear(seen)
		clear(want)
		for _, l := range logged(t, "server-ours", begin) {
			seen[l.Peer]++
			want[[2]string{l.Peer, l.Workload}] = true
			if l.Bytes != sizes[l.Peer] {
				t.Fatalf("a connection with %d bytes has the identity %s, whose connections have %d", l.Bytes, l.Peer, sizes[l.Peer])
			}
		}
		for peer := range sizes {
			if seen[peer] != n {
				return fmt.Errorf("connections by identity are %v, want %d each", seen, n)
			}
		}
		return nil
	})
	waitFor(t, "the gateway logs a stream for each identity and pod", func() error {
		got := map[[2]string]bool{}
		for _, l := range logged(t, "gateway", begin) {
			got[[2]string{l.Peer, l.Workload}] = true
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("the gateway forwarded %v, and to the pods came %v", got, want)
		}
		return nil
	})
	if len(want) != 2*len(pods) {
		t.Errorf("identities and pods are %v, want every pod with both", want)
	}
}

func waitFor(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Errorf("%s: not within %v: %v", what, patience, err)
}
