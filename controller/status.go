package controller

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/buildinfo"
)

// endpoints are what a controller answers beside what every process does.
func (c *Controller) endpoints() []admin.Endpoint {
	return []admin.Endpoint{{Pattern: "GET /status", Doc: "who leads, imports, virtual addresses, writes that are held back, certificates and sources", Handler: admin.Only(c.status)}}
}

// status answers what this process knows and does.
func (c *Controller) status(w http.ResponseWriter, _ *http.Request) {
	now := time.Now()
	s := answer.Status{Process: "controller " + c.cfg.Name, Network: c.cfg.Network, Version: buildinfo.Version(), Now: now, Services: []answer.Row{}, Gateways: []answer.Gateway{}, Local: []standing.Out{},
		Pending: c.pending(), Problems: c.findings()}
	x := &answer.Controller{Attached: c.stream.Attached(), Since: c.election.Since(), Held: []answer.HeldWrite{}}
	x.Leader, x.Leading = c.election.Leader()
	all, _ := c.imports.All()
	for _, i := range all {
		if x.Imports++; i.Ours {
			x.Own++
		}
	}
	c.mu.Lock()
	x.VIPs, x.Held = c.vips, append(x.Held, c.held...)
	c.mu.Unlock()
	if c.authority != nil {
		x.Certificates = c.authority.requests.Results()
	}
	for _, l := range c.source.Status().Lists {
		if l.Kind == "serviceexports" {
			continue // c.declared follows them too, and writes them
		}
		x.Sources = append(x.Sources, answer.Source{Kind: l.Kind, Objects: l.Objects, AgeMS: l.AgeMS, Absent: l.Absent, Error: failing(l.Failing, l.LastError)})
	}
	why := c.client.Failing()
	for _, o := range []struct {
		kind   string
		status func() (synced, absent bool, objects int)
	}{{"serviceimports", c.imports.Status}, {"serviceexports", c.declared.Status}} {
		synced, absent, n := o.status()
		x.Sources = append(x.Sources, answer.Source{Kind: o.kind, Objects: n, Absent: absent, Unread: !synced && !absent, Error: cmp.Or(why["list "+o.kind], why["watch "+o.kind])})
	}
	x.Synced = c.synced() && !slices.ContainsFunc(x.Sources, func(s answer.Source) bool { return s.Unread })
	s.Controller = x
	admin.Answer(w, http.StatusOK, s)
}

func failing(now bool, why string) string {
	if now {
		return why
	}
	return ""
}
