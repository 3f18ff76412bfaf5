package imports

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// The API server rejects a status with a longer message.
func TestMessagesOfConditionsFit(t *testing.T) {
	l := Local{Exists: true, Exported: true, Pods: true, Meshed: true, Export: Export{Cluster: "west", Ports: tcp(80)}}
	for i := range 2_000 {
		l.Notes = append(l.Notes, fmt.Sprint("port ", i, " ü is not"))
	}
	var others []Export
	for i := range 3_000 {
		others = append(others, Export{Cluster: fmt.Sprint("network-", i), Ports: tcp(uint16(1 + i))})
	}
	for lead := range 4 { // whichever byte of a rune the limit falls on
		l.Notes[0] = strings.Repeat("x", lead)
		for _, c := range Conditions(l, others) {
			if len(c.Message) > maxMessage || !utf8.ValidString(c.Message) {
				t.Errorf("the message of %s has %d bytes, valid: %v; want at most %d", c.Kind, len(c.Message), utf8.ValidString(c.Message), maxMessage)
			}
			if c.Kind != "Valid" && !strings.HasSuffix(c.Message, " bytes more)") {
				t.Errorf("the message of %s does not say that it was cut: it ends in %q", c.Kind, c.Message[len(c.Message)-40:])
			}
		}
	}
	if Differ(Conditions(l, others), Conditions(l, others)) {
		t.Error("conditions differ from themselves: they would be written again and again")
	}
	if got := cut("a\xffb"); got != "a\uFFFDb" {
		t.Errorf("text that is not UTF-8 is %q: the API server would give back another one", got)
	}
}

func TestConflictMessageNamesFieldsAndWinner(t *testing.T) {
	old, young := time.Unix(1_700_000_000, 0), time.Unix(1_800_000_000, 0)
	for name, c := range map[string]struct {
		own   time.Time
		other Export
		want  []string
	}{
		"ports": {old, Export{Cluster: "east", Ports: tcp(8080), Created: young}, []string{"different spec.ports: the export of west wins, as it is the oldest; the import has p80 80/TCP and p8080 8080/TCP",
			"west (since 2023-11-14T22:13:20Z) has p80 80/TCP, east (since 2027-01-15T08:00:00Z) has p8080 8080/TCP"}},
		"type": {young, Export{Cluster: "east", Ports: tcp(80), Headless: true, Created: old}, []string{"different spec.clusterIP (headless or not): the export of east wins, as it is the oldest; the import has a headless service with p80 80/TCP",
			"east (since 2023-11-14T22:13:20Z) has a headless service with p80 80/TCP, west"}},
		"affinity":       {old, Export{Cluster: "east", Ports: tcp(80), Affinity: "ClientIP"}, []string{"different spec.sessionAffinity: the export of west wins, as it is the oldest; the import has p80 80/TCP;", "east (of unknown age) has p80 80/TCP and session affinity ClientIP"}},
		"of one age":     {old, Export{Cluster: "zulu", Ports: tcp(8080), Created: old}, []string{"the export of west wins, as it is the first by name of the oldest;"}},
		"of unknown age": {time.Time{}, Export{Cluster: "east", Ports: tcp(8080)}, []string{"the export of east wins, as it is the first by name, and the age of no export is known;"}},
	} {
		l := Local{Exists: true, Exported: true, Pods: true, Meshed: true, Export: Export{Cluster: "west", Ports: tcp(80), Created: c.own}}
		got := Conditions(l, []Export{c.other})[2]
		for _, want := range c.want {
			if got.Status != "True" || !strings.Contains(got.Message, want) {
				t.Errorf("%s: %s %s: %q; want %q", name, got.Kind, got.Status, got.Message, want)
			}
		}
	}
}

// In every combination of states, Ready is True only if gateways export the service and it lacks nothing but pods. Its
// message names what is missing.
func TestReadyConditionNamesWhatIsMissing(t *testing.T) {
	bools := []bool{false, true}
	for _, exists := range bools {
		for _, kind := range []string{"", "ExternalName"} {
			for _, exported := range bools {
				for _, noGateway := range bools {
					for _, pods := range []Local{{}, {Pods: true}, {Pods: true, Meshed: true}} {
						l := Local{Exists: exists, Type: kind, Exported: exported, Why: "label x", NoGateway: noGateway, Pods: pods.Pods, Meshed: pods.Meshed, Notes: []string{"a note"}, Export: Export{Cluster: "west", Ports: tcp(80)}}
						valid, reason, status, says := exists && kind == "", "Exported", "True", "export it to the linked networks"
						switch {
						case !exists:
							reason, status, says = "Failed", "False", "create it"
						case kind != "":
							reason, status, says = "Failed", "False", "type ExternalName"
						case !exported:
							reason, status, says = "Failed", "False", "label x"
						case noGateway:
							reason, status, says = "Pending", "Unknown", "isthmus-gateway"
						case l.Pods && !l.Meshed:
							reason, status, says = "Pending", "False", "istio.io/dataplane-mode=ambient"
						case !l.Pods:
							says = "spec.selector"
						}
						c := Conditions(l, nil)
						if (c[0].Status == "True") != valid || c[1].Status != status || c[1].Reason != reason || !strings.Contains(c[1].Message, says) || c[2].Status != "False" {
							t.Errorf("%+v: %+v; want Ready %s (%s) that says %q", l, c, status, reason, says)
						}
						if strings.Contains(c[1].Message, "a note") != (valid && exported) {
							t.Errorf("%+v: %q", l, c[1].Message)
						}
					}
				}
			}
		}
	}
}
