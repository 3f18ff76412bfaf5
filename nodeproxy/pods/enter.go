package pods

import (
	"context"
	"errors"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cnisocket"
)

// enterAll begins to capture those of wanted whose places were found; it owns places.
func (c *Set) enterAll(wanted map[string]*mesh.Workload, places map[string]place, rules capture.Rules) {
	for uid, at := range places {
		c.works.begin(uid, "entering its network namespace", at.ns.ID(), func() { c.enter(wanted[uid], at, rules) })
	}
}

// enter captures w; it owns at.
func (c *Set) enter(w *mesh.Workload, at place, rules capture.Rules) {
	h := &Pod{uid: w.UID, address: w.Addresses[0], place: at, rules: rules, since: time.Now()}
	h.judged = c.judgedNow(w) // before policies are read: of newer ones the next look finds that they are others
	h.rules.Inbound = c.inbound(w)
	h.data, h.stop = context.WithCancel(c.p.Data)
	var err error
	if h.watch, err = capture.NewWatch(at.ns); err == nil { // first: what open has set, it takes out if it fails, and nobody after it
		err = c.open(h, w)
	}
	c.mu.Lock()
	late := err == nil && c.p.Draining()
	if late {
		err = errStops
	}
	if err == nil {
		c.held[w.UID] = h
		c.came.Store(true)
		delete(c.failing, w.UID)
		c.start(h)
	}
	c.mu.Unlock()
	if err == nil || errors.Is(err, errYounger) {
		c.yields(w.UID, err != nil)
	}
	if late {
		c.closeSource(h, false) // as when it is left: its rules are the next one's, or refuse
	}
	if err != nil {
		h.stop()
		h.names.close()
		h.closeListeners()
		h.incoming.Undecided.Close()
		h.watch.Close()
		at.close()
		c.fail(w.UID, err)
		if at.told != nil && errors.Is(err, errYounger) {
			c.decide(at.told, cnisocket.Reply{Verdict: cnisocket.Captured})
			return
		}
		if lacking(err) == nil { // else it is tried again for as long as the plugin waits
			c.failed(at.told, err)
		}
		return
	}
	c.p.Log.Info().Str("workload", w.UID).Stringer("address", h.address).Bool("announced", at.told != nil).Msg("captured")
	if at.told != nil {
		c.decide(at.told, cnisocket.Reply{Verdict: cnisocket.Captured})
	}
}

var errStops = errors.New("this process stops")

// start serves what h has opened; the caller holds mu, and this process does not drain.
func (c *Set) start(h *Pod) {
	h.server.Start()
	h.names.serve(h.data, c.p.Go)
}
