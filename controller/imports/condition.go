package imports

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/isthmus-mesh/isthmus/controller/vip"
)

// Condition is one of an object's status, in the words of Kubernetes.
type Condition struct{ Kind, Status, Reason, Message string }

// Local is a service of this cluster that a ServiceExport names.
type Local struct {
	Exists bool   // the Service
	Type   string // that cannot be exported, such as ExternalName; empty: it can
	// Exported reports whether the gateways of this network export it; if not, Why is the reason.
	Exported bool
	Why      string
	Notes    []string // parts of the Service that are not used
	Export   Export   // if Exported
	// Pods reports whether the Service has pods, and Meshed whether any of them is in the mesh, on this
	// network. The export has no endpoint otherwise.
	Pods, Meshed bool
	// NoGateway is set while no gateway of this network is connected, and nothing is known of its exports.
	NoGateway bool
}

// Conditions returns the conditions of the ServiceExport of l. others are the exports of
// other networks under its name.
func Conditions(l Local, others []Export) []Condition {
	valid := Condition{"Valid", "True", "Valid", "the Service can be exported"}
	ready := Condition{"Ready", "True", "Exported", "the gateways of this network export it to the linked networks"}
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
	case l.NoGateway:
		ready = Condition{"Ready", "Unknown", "Pending", "no gateway of this network is connected to isthmus-controller: see whether isthmus-gateway runs, and whether its pods are ready"}
	case l.Pods && !l.Meshed:
		ready = Condition{"Ready", "False", "Pending", "it is exported without an endpoint: none of its pods is in the mesh, on this network: label the namespace or the pods istio.io/dataplane-mode=ambient, and correct their label topology.istio.io/network if they have one"}
	case !l.Pods:
		ready.Message += ", without an endpoint: it has no pod on the pod network now, so its connections are refused unless another network has one: if that is not intended, compare spec.selector with the labels of the pods"
	}
	if len(l.Notes) > 0 && l.Exported && valid.Status == "True" {
		ready.Message += "; " + strings.Join(l.Notes, "; ")
	}
	conflict := Condition{"Conflict", "False", "NoConflicts", "no other network exports it differently"}
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

// conflictMessage names the differing fields, each network with its age, the network that
// wins and why, the ports of the import, and the remedy.
func conflictMessage(conflicts Conflicts, merged Import, all []Export) string {
	sorted := slices.SortedFunc(slices.Values(all), older)
	var said []string
	for _, e := range sorted {
		age := "of unknown age"
		if !e.Created.IsZero() {
			age = "since " + e.Created.UTC().Format(time.RFC3339)
		}
		said = append(said, fmt.Sprintf("%s (%s) has %s", e.Cluster, age, e.words()))
	}
	why := "is the oldest"
	switch first, second := sorted[0], sorted[min(1, len(sorted)-1)]; {
	case first.Created.IsZero():
		why = "is the first by name, and the age of no export is known"
	case first.Created.Equal(second.Created):
		why = "is the first by name of the oldest"
	}
	var fields []string
	for _, c := range conflicts {
		fields = append(fields, map[string]string{PortConflict: "spec.ports", TypeConflict: "spec.clusterIP (headless or not)", AffinityConflict: "spec.sessionAffinity"}[c])
	}
	return fmt.Sprintf("networks export it with different %s: the export of %s wins, as it %s; the import has %s; %s: make them the same, or give one service another name", strings.Join(fields, " and "), sorted[0].Cluster, why, Export{Headless: merged.Headless, Affinity: merged.Affinity, Ports: merged.Ports}.words(), strings.Join(said, ", "))
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
