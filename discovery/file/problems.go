package file

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// maxListed is how many problems Status lists; it counts them all.
const maxListed = 100

// Problem is one reason why an object, or a field of it, is not used.
type Problem struct {
	Source  string `json:"source"`          // source of the object: file, kubernetes, gateway (of the own network) or network (gateways of another network)
	Object  string `json:"object"`          // kind and name, such as workload "web-1"
	Out     bool   `json:"out"`             // the whole object is not used, not only the field
	Cause   string `json:"cause"`           // value, missing, conflict, reference or unsupported
	Line    int    `json:"line,omitzero"`   // line of the field in the file; absent for other sources
	Field   string `json:"field"`           // such as workloads[3].addresses[0], or spec.ports[0] of a Kubernetes object
	Value   string `json:"value,omitempty"` // value of the field; empty if it has none
	Message string `json:"message"`         // the fault and the remedy
}

// sentence says p in one line.
func (p Problem) sentence() string {
	what := "of " + p.Object + " a field is not used"
	if p.Out {
		what = p.Object + " is left out"
	}
	field := p.Field
	if p.Value != "" {
		field += " " + strconv.Quote(p.Value)
	}
	says := fmt.Sprintf("line %d", p.Line)
	switch p.Source {
	case "network":
		says = "told by another network"
	case "kubernetes":
		says = "told by Kubernetes"
	case "gateway":
		says = "told by a gateway of this network"
	}
	return fmt.Sprintf("%s: %s: %s: %s", says, what, field, p.Message)
}

// LeftOut says why what the file has of the service namespace/name, or of a share of it,
// is not used; "" if nothing of it is left out, or nobody lists that problem. Safe for
// concurrent use.
func (w *Watcher) LeftOut(namespace, name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.written.list {
		kind, object, _ := strings.Cut(p.Object, " ")
		object, _ = strconv.Unquote(object)
		of := namespace + "/" + name
		if p.Out && (kind == discovery.KindService.String() && object == of || kind == discovery.KindShare.String() && strings.HasSuffix(object, "/"+of)) {
			return "discovery file " + w.path + ": " + p.sentence()
		}
	}
	return ""
}

func (w *Watcher) problem(doc *strictyaml.Doc, p discovery.Problem) Problem {
	return Problem{"file", p.Object.String(), p.Out, p.Cause.String(), doc.Line(p.Path...), p.Field, p.Value, p.Message}
}

// problems are the first of some, and how many there are.
type problems struct {
	list    []Problem
	byCause map[string]int
}

func (p *problems) add(x Problem) {
	if p.byCause == nil {
		p.byCause = map[string]int{}
	}
	p.byCause[x.Cause]++
	if len(p.list) < maxListed {
		p.list = append(p.list, x)
	}
}

// fill tells status of these problems, after those that it has.
func (p *problems) fill(s *Status) {
	s.Problems = append(s.Problems, p.list[:min(len(p.list), maxListed-len(s.Problems))]...)
	for cause, n := range p.byCause {
		s.ProblemsByCause[cause] += n
	}
}

// report tells Status what of the content in force, which doc says, is not used,
// and logs what is new about that.
func (w *Watcher) report(doc *strictyaml.Doc, news discovery.News) {
	for _, p := range w.listing.Locate(of(discovery.Written, news.Appeared)) {
		w.logProblem(w.problem(doc, p))
	}
	for _, p := range of(discovery.Written, news.Gone) {
		what := "a problem of the discovery file is gone"
		if p.Object.Kind != 0 && !w.listing.Lists(p.Object) {
			what = "a problem of the discovery file is gone with its object"
		}
		w.Log.Info().Str("file", w.path).Stringer("object", p.Object).Str("problem", p.Error()).Msg(what)
	}
	var written problems
	for _, p := range w.listing.Locate(append(w.listing.Faults(), of(discovery.Written, w.problems())...)) {
		written.add(w.problem(doc, p))
	}
	w.mu.Lock()
	w.written = written
	w.mu.Unlock()
	w.reportTold(news)
}

// speaker is a source beside the file: how a Problem calls it, and what it is that has a
// problem.
type speaker struct {
	source       discovery.Source
	name, speaks string
}

// speakers are the sources beside the file. Gateways tell a node proxy of the cluster, and the
// cluster tells gateways.
func (w *Watcher) speakers() []speaker {
	cluster := speaker{discovery.Cluster, "kubernetes", "what the Kubernetes cluster says"}
	if w.excerpt {
		cluster.name, cluster.speaks = "gateway", "what a gateway of this network tells"
	}
	return []speaker{cluster, {discovery.Told, "network", "what another network tells"}}
}

// reportTold is report of what Apply was given.
func (w *Watcher) reportTold(news discovery.News) {
	for _, o := range w.speakers() {
		for _, p := range of(o.source, news.Appeared) {
			if held, ok := w.mayLog(p, "there"); ok {
				w.logTold(said(o.name, p), held, o.speaks+" has a problem, everything else in it is in force")
			}
		}
		for _, p := range of(o.source, news.Gone) {
			if held, ok := w.mayLog(p, "gone"); ok {
				logging.Suppressed(w.Log.Info(), held).Stringer("object", p.Object).Str("problem", p.Error()).Msg("a problem of " + o.speaks + " is gone")
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.others = problems{}
	all := w.problems() // asked for with mu held: the last to ask is the last to write
	for _, o := range w.speakers() {
		for _, p := range of(o.source, all) {
			w.others.add(said(o.name, p))
		}
	}
	w.status.Revision = w.store.Current().Revision
	w.status.Problems, w.status.ProblemsByCause = make([]Problem, 0, len(w.written.list)+len(w.others.list)), map[string]int{}
	w.written.fill(&w.status)
	w.others.fill(&w.status)
}

// said is p as somebody else than the file says it.
func said(source string, p discovery.Problem) Problem {
	return Problem{source, p.Object.String(), p.Out, p.Cause.String(), 0, p.Field, p.Value, p.Message}
}

func (w *Watcher) problems() []discovery.Problem {
	w.building.Lock()
	defer w.building.Unlock()
	return w.builder.Problems()
}

// of returns those of list that are about what source says.
func of(source discovery.Source, list []discovery.Problem) (out []discovery.Problem) {
	for _, p := range list {
		if p.Object.Source == source {
			out = append(out, p)
		}
	}
	return out
}

// toldEvery is how often a line says of one field of what another network tells that it
// has a problem, or none any more, and of all of a network beyond the first 64 together.
// Of what a cluster says it is the same, by namespace.
const toldEvery = 10 * time.Second

// mayLog reports whether a line says what became of p, and of how many before it none did.
func (w *Watcher) mayLog(p discovery.Problem, what string) (held int, ok bool) {
	network, _, _ := strings.Cut(p.Object.Name, "/") // of a cluster, the namespace
	return w.toldLines.Allow(network, what+" "+p.Object.String()+" "+p.Field, time.Now())
}

func (w *Watcher) logTold(p Problem, held int, message string) {
	logging.Suppressed(w.Log.Warn(), held).Str("object", p.Object).Bool("out", p.Out).Str("cause", p.Cause).Str("field", p.Field).Str("value", p.Value).Str("problem", p.Message).
		Msg(message)
}

func (w *Watcher) logProblem(p Problem) {
	w.Log.Error().Str("file", w.path).Int("line", p.Line).Str("object", p.Object).Bool("out", p.Out).Str("cause", p.Cause).
		Str("field", p.Field).Str("value", p.Value).Str("problem", p.Message).Msg("the discovery file has a problem, everything else in it is in force")
}

// riskless reports whether changes of old, and another root namespace, cannot take away more than a Guard lets pass,
// so that nobody needs to build the mesh twice to find out. What of old is no record, as
// workloads elsewhere, is in no change.
func riskless(old *mesh.Snapshot, root string, changes []discovery.Change) bool {
	if was := old.Policies(); was != nil && was.Root() != root {
		return false
	}
	workloads, services, policies := 0, 0, 0
	for _, c := range changes {
		switch c.Key.Kind {
		case discovery.KindNetwork, discovery.KindGateway, discovery.KindShare:
			return false
		case discovery.KindPolicy:
			if policies++; policies > freeRemovals {
				return false
			}
		case discovery.KindService:
			services++
			if c.Record != nil {
				services++ // it may take its hostname from another one
			}
		case discovery.KindWorkload:
			workloads++
			for _, svc := range old.ServicesOf(c.Key.Name) {
				if numMembers(old, svc) <= freeRemovals { // with more, so few changes leave one
					services++
				}
			}
		}
	}
	return workloads <= freeRemovals && services <= freeRemovals
}

func numMembers(s *mesh.Snapshot, svc *mesh.Service) (n int) {
	for _, network := range s.Networks(svc) {
		n += len(s.Members(svc, network))
	}
	return n
}
