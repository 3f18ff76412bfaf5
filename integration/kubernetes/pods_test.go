package kubernetes

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// awaitNode returns when the node proxy of the pod's node takes connections for it.
func (p *demoPod) awaitNode(t *testing.T) {
	t.Helper()
	accepts := p.side.world.Accepts(p.node.name, p.address+":15008")
	eventually(t, 10*time.Second, "the node proxy of "+p.name+" listens for it", func() bool { return accepts() == nil })
}

// answered returns how many connections, begun after an instant, p has answered.
func (r *traffic) answered(p *demoPod, since time.Time) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.attempts {
		if a.err == nil && a.pod == p.name && a.began.After(since) {
			n++
		}
	}
	return n
}

func TestPodsComeAndGoUnderTraffic(t *testing.T) {
	s := openShop(t, 2, 2, "", 8080)
	load := s.client.start(hello, 10*time.Millisecond)
	var firsts []time.Duration // of each round
	for round := range 3 {
		p := s.west.run(t, "hello", fmt.Sprintf("hello-new-%d", round), s.west.nodes[round%2], 8080)
		p.awaitNode(t)
		ready := time.Now()
		p.say(t, corev1.ConditionTrue)
		took := eventually(t, 10*time.Second, "a new pod answers", func() bool { return load.answered(p, ready) > 0 })
		t.Logf("ready → first connection: %v", took.Round(time.Millisecond))
		firsts = append(firsts, took)
		over := p.delete(t, 2*time.Second)
		deleted := time.Now()
		<-over
		for _, a := range load.since(deleted.Add(time.Second)) {
			if a.pod == p.name {
				t.Errorf("%v after it was deleted %s answers a new connection", a.began.Sub(deleted), p.name)
			}
		}
		if a := load.since(deleted); len(a) > 0 {
			last := time.Duration(0)
			for _, a := range a {
				if a.pod == p.name {
					last = max(last, a.began.Sub(deleted))
				}
			}
			t.Logf("deleted → last connection begun: %v", last.Round(time.Millisecond))
		}
	}
	flawless(t, load.Stop())
	if slices.Sort(firsts); firsts[1] >= time.Second { // the median: one may meet a machine that is busy
		t.Errorf("pods that are ready get their first connection after %v, want less than 1 s (median)", firsts)
	}

	began, why := time.Now(), ""
	s.west.label(t, "hello", `{"istio.io/global":null}`)
	took := eventually(t, 10*time.Second, "a service that is no longer global is out of reach", func() bool { return s.client.call(hello).err != nil })
	t.Logf("label removed → unreachable from the other cluster: %v", time.Since(began).Round(time.Millisecond))
	if took >= 2*time.Second {
		t.Errorf("a service is reached for %v after its label was removed, want less than 2 s", took)
	}
	eventually(t, 5*time.Second, "the node proxy of the client says why", func() bool { why = s.refused(t, s.client.node, began); return why != "" })
	t.Logf("the client's node proxy says: %s", why)
	if !strings.Contains(why, "not_exported") && !strings.Contains(why, "unknown") {
		t.Errorf("the reason is %q, want one that names the export", why)
	}
	s.west.label(t, "hello", `{"istio.io/global":"true"}`)
	took = eventually(t, 10*time.Second, "it is reached again", func() bool { return s.client.call(hello).err == nil })
	t.Logf("label back → reached again: %v", took.Round(time.Millisecond))
}

// refused is the result and the error of a connection that failed at a node since an
// instant; empty if none has been logged.
func (w *world) refused(t *testing.T, n *node, since time.Time) string {
	t.Helper()
	for line := range strings.Lines(w.log(t, n.name)) {
		var l struct {
			Time                              time.Time
			Message, Direction, Result, Error string
		}
		if json.Unmarshal([]byte(line), &l) == nil && l.Message == "connection" && l.Error != "" && l.Time.After(since) {
			return l.Result + ": " + l.Error
		}
	}
	return ""
}
