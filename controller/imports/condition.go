package imports

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/isthmus-mesh/isthmus/controller/vip"
)

// Condition is one of an object's status, in the words of Kubernetes.
type Condition struct{ Kind, Status, Reason, Message string }

// Local is a service of this cluster that a ServiceExport names.
type Local struct {
	Exists bool   // the Service
	Type   string // that cannot be exported, such as ExternalName; empty: it can
	// Exported says that other networks may reach it; else Why says why not.
	Exported bool
	Why      string
	Notes    []string // what of it counts for nothing
	Export   Export   // what it comes to; if Exported
}

// Conditions are those of the ServiceExport of l, where other networks export these under
// its name.
func Conditions(l Local, others []Export) []Condition {
	valid := Condition{"Valid", "True", "Valid", "the Service can be exported"}
	ready := Condition{"Ready", "True", "Exported", "the gateways of this network offer it to the networks that are linked"}
	switch {
	case !l.Exists:
		valid = Condition{"Valid", "False", "NoService", "there is no Service of this name: create it, or delete the ServiceExport"}
	case l.Type != "":
		valid = Condition{"Valid", "False", "InvalidServiceType", fmt.Sprintf("a Service of type %s has no pods that another network could reach: delete the ServiceExport", l.Type)}
	}
	switch {
	case valid.Status != "True":
		ready = Condition{"Ready", "False", "Failed", valid.Message}
	case !l.Exported:
		ready = Condition{"Ready", "False", "Failed", l.Why}
	case len(l.Notes) > 0:
		ready.Message += "; but " + strings.Join(l.Notes, "; ")
	}
	conflict := Condition{"Conflict", "False", "NoConflicts", "no other network says anything else of it"}
	if l.Exported && valid.Status == "True" {
		all := append([]Export{l.Export}, others...)
		merged, conflicts := Merge(vip.Name{}, all)
		if len(conflicts) > 0 {
			conflict = Condition{"Conflict", "True", strings.Join(conflicts, ","), conflictMessage(conflicts, merged, all)}
		}
	}
	out := []Condition{valid, ready, conflict}
	for i := range out {
		out[i].Message = cut(out[i].Message)
	}
	return out
}

// maxMessage is how long the message of a condition may be, in bytes; the definitions of
// MCS take as many characters.
const maxMessage = 32_768

// cut returns text as the API server takes it for a message, and gives it back: valid
// UTF-8, and where it is too long, as much as fits and how much is left out.
func cut(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= maxMessage {
		return text
	}
	end := maxMessage - len("… (cut: 9223372036854775807 bytes more)")
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return fmt.Sprintf("%s… (cut: %d bytes more)", text[:end], len(text)-end)
}

// conflictMessage says who differs, what holds, and what to do.
func conflictMessage(conflicts Conflicts, merged Import, all []Export) string {
	var said []string
	for _, e := range slices.SortedFunc(slices.Values(all), older) {
		said = append(said, fmt.Sprintf("%s has %s", e.Cluster, e.words()))
	}
	var fields []string
	for _, c := range conflicts {
		fields = append(fields, map[string]string{PortConflict: "spec.ports", TypeConflict: "spec.clusterIP (headless or not)", AffinityConflict: "spec.sessionAffinity"}[c])
	}
	return fmt.Sprintf("networks export it with different %s: %s; the oldest export counts, and the ports are %s: make them the same, or give one service another name", strings.Join(fields, " and "), strings.Join(said, ", "), wordsOf(merged.Ports))
}

func (e Export) words() string {
	words := wordsOf(e.Ports)
	if e.Headless {
		words = "a headless service with " + words
	}
	if e.Affinity != "" {
		words += " and session affinity " + e.Affinity
	}
	return words
}

func wordsOf(ports []Port) string {
	if len(ports) == 0 {
		return "no ports"
	}
	var out []string
	for _, p := range ports {
		s := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.Name != "" {
			s = p.Name + " " + s
		}
		out = append(out, s)
	}
	return strings.Join(out, " and ")
}

// Differ reports whether any of want is not among have.
func Differ(want, have []Condition) bool {
	return slices.ContainsFunc(want, func(c Condition) bool { return !slices.Contains(have, c) })
}
