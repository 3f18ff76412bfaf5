package file

import (
	"fmt"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// maxListed is how many problems Status lists; it counts them all.
const maxListed = 100

// Problem is one reason why an object of the file, or a field of it, is not used.
type Problem struct {
	Object  string `json:"object"`          // kind and name, such as workload "web-1"
	Out     bool   `json:"out"`             // the whole object is left out, not the field alone
	Cause   string `json:"cause"`           // value, missing, conflict, reference or unsupported
	Line    int    `json:"line"`            // of the field, in the file
	Field   string `json:"field"`           // such as workloads[3].addresses[0]
	Value   string `json:"value,omitempty"` // what stands there; empty if nothing does
	Message string `json:"message"`         // what is wrong with it, and the remedy
}

// sentence says p in one line.
func (p Problem) sentence() string {
	what := "this field is not used"
	if p.Out {
		what = "is left out"
	}
	return fmt.Sprintf("line %d: %s %s: %s %q: %s", p.Line, p.Object, what, p.Field, p.Value, p.Message)
}

func (w *Watcher) problem(doc *strictyaml.Doc, p discovery.Problem) Problem {
	return Problem{p.Object.String(), p.Out, p.Cause.String(), doc.Line(p.Path...), p.Field, p.Value, p.Message}
}

// report tells Status what of the content in force, which doc says, is not used,
// and logs what is new about that.
func (w *Watcher) report(doc *strictyaml.Doc, news discovery.News) {
	for _, p := range w.listing.Locate(news.Appeared) {
		w.logProblem(w.problem(doc, p))
	}
	for _, p := range news.Gone {
		what := "a problem of the discovery file is gone"
		if p.Object.Kind != 0 && !w.listing.Lists(p.Object) {
			what = "a problem of the discovery file is gone with its object"
		}
		w.Log.Info().Str("file", w.path).Stringer("object", p.Object).Str("problem", p.Error()).Msg(what)
	}
	all := w.listing.Locate(append(w.listing.Faults(), w.builder.Problems()...))
	byCause, list := map[string]int{}, make([]Problem, 0, min(len(all), maxListed))
	for _, p := range all {
		byCause[p.Cause.String()]++
		if len(list) < maxListed {
			list = append(list, w.problem(doc, p))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Problems, w.status.ProblemsByCause = list, byCause
}

func (w *Watcher) logProblem(p Problem) {
	w.Log.Error().Str("file", w.path).Int("line", p.Line).Str("object", p.Object).Bool("out", p.Out).Str("cause", p.Cause).
		Str("field", p.Field).Str("value", p.Value).Str("problem", p.Message).Msg("the discovery file has a problem, everything else in it is in force")
}

// riskless reports whether changes cannot take away more than a Guard lets pass,
// so that nobody needs to build the mesh twice to find out.
func riskless(changes []discovery.Change) bool {
	workloads := 0
	for _, c := range changes {
		switch c.Key.Kind {
		case discovery.KindNetwork:
			return false
		case discovery.KindWorkload:
			workloads++
		}
	}
	return workloads <= freeRemovals
}
