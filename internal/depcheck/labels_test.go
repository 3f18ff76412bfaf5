package depcheck

import (
	"go/ast"
	"go/printer"
	"maps"
	"slices"
	"strings"
	"testing"
)

// labels are the arguments of WithLabelValues that are not constants, by
// directory, each with the closed set that it comes from. What a peer sends must
// not reach a label: every value is a time series for ever.
var labels = map[string]map[string]string{
	"control/ads": {
		"reason":                "the constants of metrics.go",
		"reasonStreams":         "a constant",
		"reasonType":            "a constant",
		"reasonUnauthenticated": "a constant",
	},
	"controller": {
		"outcome(err)":      "stale, gone, refused, failed",
		"w":                 "the constants of imports.Do, and conditions",
		"do":                "the constants of imports.Do, and conditions",
		"taintWrite":        "taint",
		"eventOutcome(err)": "done, and what outcome says",
	},
	"discovery/kube/boundtoken": {"string(why)": "boundtoken.Reasons", "string(how)": "boundtoken.ByReview, boundtoken.ByKeys"},
	"federation/gossip": {
		"reason":    "reasonOf, of errors by their kinds",
		"c.label()": "the two kinds of connections",
		"queue":     "the two kinds of queues",
	},
	"federation/healthstream": {
		"reason":               "the constants of peer.Reason",
		"peer.ReasonOtherNode": "a constant",
		"string(why)":          "healthstream.Unprovens",
	},
	"gateway": {
		"result":                       "the constants of result.go, and the reasons that the gateway itself gives",
		"edge":                         "ejected, readmitted",
		"refusal":                      "the reasons of identity.ReasonOf",
		"reason":                       "what the first pod of a replay did: constants of replay.go",
		"waitBounds[bound].label":      "the table waitBounds",
		"kind":                         "the constants of pending.Entry's Probe",
		"string(why)":                  "the constants of hbone.Refusal",
		"string(hbone.OutcomeOf(err))": "the constants of hbone.Outcome",
	},
	"nodeproxy/names":  {"name": "the table results"},
	"identity/istioca": {"result": "the table results, and failed"},
	"internal/admission": {
		"string(s)":          "admission.Scopes",
		"string(l)":          "admission.LimitNames",
		"string(ByIdentity)": "one of admission.Scopes",
		"string(ByAddress)":  "the other one",
		"string(r.Scope)":    "admission.Scopes",
		"string(r.Limit)":    "admission.LimitNames",
	},
	"internal/memory": {
		"kindNames[u.use.kind]": "the constants of memory.Kind",
		"k":                     "likewise",
		"r":                     "delayed, refused",
	},
	"nodeproxy/pods": {"string(v)": "the constants of cnisocket.Verdict that are answers to ADD"},
	"nodeproxy": {
		"reporter":                     "source, destination",
		"v.String()":                   "the names of capture.Verdict, which has dropped",
		"session":                      "constants of Proxy.tunnel",
		"refusal":                      "the reasons of identity.ReasonOf",
		"a.result":                     "ok, cancelled, and the reasons of failures; inbound those that we give ourselves",
		"f.reason":                     "an isthmus-reason that is on the list, or a constant of failure.go",
		"kind":                         "the constants of pending.Entry's Probe",
		"string(why)":                  "the constants of hbone.Refusal",
		"string(hbone.OutcomeOf(err))": "the constants of hbone.Outcome",
		"string(e.Scope)":              "the constants of picker.Scope",
		"name":                         "ejected, readmitted",
		"result":                       "withdrawn, accepted, refused, unanswered, see call.heard",
		"network":                      "the networks whose gateways discovery lists, which are configured or linked",
		"g.Network":                    "as network",
		"after":                        "lines.TCP, lines.QUIC",
	},
}

func TestMetricLabelsComeFromClosedSets(t *testing.T) {
	seen := map[string]map[string]bool{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		dir := s.pkg
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "WithLabelValues" && sel.Sel.Name != "GetMetricWithLabelValues" {
				return true
			}
			for _, arg := range call.Args {
				if _, literal := arg.(*ast.BasicLit); literal {
					continue
				}
				var b strings.Builder
				printer.Fprint(&b, s.fset, arg)
				if labels[dir][b.String()] == "" {
					t.Errorf("%s: label %s: say in labels which closed set it comes from", s.at(call.Pos()), b.String())
				}
				if seen[dir] == nil {
					seen[dir] = map[string]bool{}
				}
				seen[dir][b.String()] = true
			}
			return true
		})
	}
	for dir, args := range labels {
		for _, arg := range slices.Sorted(maps.Keys(args)) {
			if !seen[dir][arg] {
				t.Errorf("labels names %s in %s, which is not there any more", arg, dir)
			}
		}
	}
}
