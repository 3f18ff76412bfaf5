package healthstream

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// TestAfterQuietEveryClientBelievesWhatTheOwnerSays plays random schedules on two
// gateways and node proxies that witness, follow, restart, overlap and are cut off.
// The model is the truth itself: which pods are ill. A node proxy says what it sees, as
// the real one does: an edge that it watches, and an answer to what it is asked. After
// quiet every client that follows the service knows exactly that.
func TestAfterQuietEveryClientBelievesWhatTheOwnerSays(t *testing.T) {
	seeds := uint64(15)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		inBubble(t, func(w *world) { playStreams(t, w, seed) })
	}
}

const pods = 5 // of each node

func playStreams(t *testing.T, w *world, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 11))
	sites := []*site{w.gateway("gw-1", nil), w.gateway("gw-2", nil)}
	var steps []string
	step := func(format string, args ...any) {
		steps = append(steps, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	}
	ill := map[mesh.EndpointID]bool{}
	owners := map[string]*node{} // the newest instance of each
	var gone []*node
	id := func(owner, pod int) mesh.EndpointID { return mesh.EndpointID(100*(owner+1) + pod) }
	name := func(owner int) string { return fmt.Sprint("node-", owner) }
	// startOwner begins an instance: it knows nothing, and asks when it is asked.
	startOwner := func(owner int) *node {
		n := w.node(name(owner), nil)
		n.mu.Lock()
		n.auto = true
		for pod := range pods {
			n.ills[Target{id(owner, pod), 80}] = ill[id(owner, pod)]
		}
		n.mu.Unlock()
		return n
	}
	for owner := range 2 {
		for pod := range pods {
			w.list(name(owner), id(owner, pod))
		}
		owners[name(owner)] = startOwner(owner)
	}
	// edge is seen by every instance of the node proxy that runs.
	edge := func(owner, pod int) {
		x := id(owner, pod)
		ill[x] = !ill[x]
		state := federation.Healthy
		if ill[x] {
			state = federation.Ejected
		}
		for _, n := range append(slices.Clone(gone), owners[name(owner)]) {
			if n.name == name(owner) && n.alive() {
				n.observe(x, state)
			}
		}
		step("pod %d is %v", x, state)
	}
	clients := []*node{w.node("client-1", nil), w.node("client-2", func(c *ClientConfig) { c.Idle = 20 * time.Second })}
	clients[0].Pin(service)
	for range 60 {
		switch owner := rng.IntN(2); rng.IntN(9) {
		case 0, 1, 2:
			edge(owner, rng.IntN(pods))
		case 3: // restart
			old := owners[name(owner)]
			old.kill()
			gone = slices.DeleteFunc(gone, func(n *node) bool { return n == old })
			for range rng.IntN(3) { // nobody sees it, but an old instance that is still there
				edge(owner, rng.IntN(pods))
			}
			time.Sleep(time.Duration(rng.Int64N(int64(3 * time.Second))))
			owners[name(owner)] = startOwner(owner)
			step("%s restarts", name(owner))
		case 4: // hand-over
			old := owners[name(owner)]
			if slices.ContainsFunc(gone, func(n *node) bool { return n.name == name(owner) }) {
				continue
			}
			owners[name(owner)] = startOwner(owner)
			if rng.IntN(2) == 0 {
				old.Drain()
			}
			gone = append(gone, old)
			step("%s hands over", name(owner))
		case 5: // the old one of a hand-over ends
			for _, n := range gone {
				n.kill()
			}
			gone = nil
			step("old instances end")
		case 6:
			victim := []string{"client-1", "client-2", name(owner)}[rng.IntN(3)]
			w.cut(victim)
			step("%s is cut off", victim)
		case 7: // a gateway restarts
			i := rng.IntN(2)
			sites[i].stop()
			time.Sleep(time.Duration(rng.Int64N(int64(2 * time.Second))))
			sites[i] = w.start(sites[i].Gateway, nil)
			time.Sleep(time.Second) // a gateway that knows no node yet cannot tell that one was there before
			step("%s restarts", sites[i].Name)
		default:
			clients[1].Use(w.t.Context(), service, 100*time.Millisecond)
		}
		time.Sleep(time.Duration(rng.Int64N(int64(2 * time.Second))))
	}
	time.Sleep(Held + 10*time.Second) // quiet
	clients[1].Use(w.t.Context(), service, time.Second)
	settle()
	var want []mesh.EndpointID
	for x, sick := range ill {
		if sick {
			want = append(want, x)
		}
	}
	slices.Sort(want)
	for _, s := range sites {
		s.holds(fmt.Sprintf("seed %d", seed), want...)
	}
	for _, c := range clients {
		if f, ok := c.Summary("west", service, 80); !ok || !slices.Equal(f.Exceptions, want) {
			t.Errorf("seed %d: %s knows %v, %v; want %v", seed, c.name, f.Exceptions, ok, want)
		}
	}
	if t.Failed() {
		for _, s := range steps {
			t.Log(s)
		}
		t.FailNow()
	}
}
