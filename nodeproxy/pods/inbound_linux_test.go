package pods

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

// A problem with the policies of a pod is listed until it ends, whatever is done in the pod meanwhile.
func TestPolicyProblemsStandWhileTheyLast(t *testing.T) {
	s, c := held(t)
	h, w := c.Get("hello"), &mesh.Workload{UID: "hello", Addresses: []netip.Addr{netip.MustParseAddr("10.71.1.1")}}
	h.server, h.place.path, c.cfg.Scope, c.node.proc, c.failing = idle{}, s.Path("pod"), ScopeAll, "/proc", map[string]*lack{}
	c.began = 1
	deny := true
	c.p.Plain = func(*mesh.Workload) (bool, func(from, to netip.AddrPort) bool) {
		return deny, func(netip.AddrPort, netip.AddrPort) bool { return true }
	}
	var config net.ListenConfig
	config.SetMultipathTCP(false) // its socket has another cookie
	var l net.Listener
	err := h.place.ns.Do(func() (err error) { l, err = config.Listen(t.Context(), "tcp", "10.71.1.1:15008"); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h.incoming.Tunnels = l.(*net.TCPListener)
	if h.watch, err = capture.NewWatch(h.place.ns); err != nil {
		t.Fatal(err)
	}
	defer h.watch.Close()
	h.rules = capture.Rules{Owner: "east", Ranges: c.cfg.Ranges, Inbound: true, By: capture.Setter{Began: 1}}
	if h.rules.By.Socket, err = capture.Cookie(h.incoming.Tunnels); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	look := func(routes bool) {
		h.unsure = true // that has the rules looked at
		h.routed = now
		if now = now.Add(2 * resetEvery); !routes {
			h.routed = now
		}
		c.keep(context.Background(), map[string]*mesh.Workload{h.uid: w}, capture.Rules{Owner: "east", Ranges: c.cfg.Ranges}, nil, now)
		c.works.wait()
	}
	want := func(when string, problems ...string) {
		t.Helper()
		got := slices.DeleteFunc(c.Problems(func(uid string) string { return uid }), func(p string) bool { return !strings.HasPrefix(p, "pod ") })
		if len(got) != len(problems) || slices.ContainsFunc(problems, func(p string) bool {
			return !slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, "pod hello: "+p) })
		}) {
			t.Errorf("%s the problems are %q, want %q", when, got, problems)
		}
	}
	const unexempt, unjudged = "policies deny plain text to it from the node's own processes", "connections that policies deny may be open in it"
	if err := c.setRules(h, h.rules); err != nil {
		t.Fatal(err)
	}
	withFiles(t, 0, func() {
		c.exempt(h, h.rules)
		c.enforce(h, w, c.judgedNow(w))
		want("without descriptors", unexempt, unjudged)
	})
	h.judged.again = now.Add(time.Hour) // no retry yet
	look(false)
	want("after a look at the rules", unexempt, unjudged)
	look(true)
	want("after the exemption was retried", unjudged)
	h.judged.again = now.Add(resetEvery)
	look(false)
	want("after connections were judged again")
	ns := h.place.ns
	closed, err := ns.Clone()
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	h.place.ns = closed
	c.enforce(h, w, c.judgedNow(w))
	h.place.ns = ns
	want("after another error", unjudged)
	look(false)
	want("after the retry of another error")
	withFiles(t, 0, func() {
		c.exempt(h, h.rules)
		c.enforce(h, w, c.judgedNow(w))
	})
	deny, h.judged = false, judged{}
	look(false)
	want("after the policy has gone")
}
