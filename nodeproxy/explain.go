package nodeproxy

import (
	"fmt"
	"net/http"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Endpoints are what the admin port answers about decisions.
func (p *Proxy) Endpoints() []admin.Endpoint {
	return []admin.Endpoint{
		{Pattern: "GET /explain", Doc: "why each candidate for a connection from ?source=<workload UID> to ?destination=<host>:<port> is in or out", Handler: admin.Only(p.explain, "source", "destination")},
		{Pattern: "GET /status", Doc: "what is known of the health of services, by network and port", Handler: admin.Only(p.status)},
	}
}

func (p *Proxy) explain(w http.ResponseWriter, r *http.Request) {
	source, destination := r.URL.Query().Get("source"), r.URL.Query().Get("destination")
	snap, now := p.store.Current(), time.Now()
	host, port, err := splitTarget(destination)
	if err != nil {
		admin.Fail(w, http.StatusBadRequest, fmt.Errorf("destination: %w, for example hello.default.svc.cluster.local:80", err))
		return
	}
	from := snap.Workload(source)
	if from == nil || from.Network != p.cfg.Network || from.Node != p.cfg.Node {
		var here []string
		for _, l := range p.locals() {
			here = append(here, l.UID)
		}
		admin.Fail(w, http.StatusBadRequest, fmt.Errorf("source: %q is no workload of node %s, whose node proxy this is: %s", source, p.cfg.Node, strictyaml.Suggest(source, here)))
		return
	}
	e := answer.Explanation{Process: "node proxy " + p.cfg.Node, Network: p.cfg.Network, Source: source, Destination: destination, Now: now, Candidates: []answer.Verdict{}}
	flow := flowTo(host, port)
	flow.Source = from
	if d, err := p.view.Resolve(snap, flow, now); err != nil {
		e.Refused = err.Error()
	} else {
		e.Candidates = p.view.Explain(d, now)
		for _, v := range e.Candidates {
			for i := range v.Endpoints {
				if id, err := mesh.ParseEndpointID(v.Endpoints[i].Endpoint); err == nil {
					v.Endpoints[i].Endpoint = nameOf(snap, id)
				}
			}
		}
	}
	admin.Answer(w, http.StatusOK, e)
}

// nameOf is the UID of an endpoint's workload, or its ID if discovery has none.
func nameOf(snap *mesh.Snapshot, id mesh.EndpointID) string {
	if w := snap.WorkloadByEndpoint(id); w != nil {
		return w.UID
	}
	return id.String()
}
