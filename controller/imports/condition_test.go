package imports

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// The definitions of MCS refuse a longer message, and with it the whole status.
func TestMessagesOfConditionsFit(t *testing.T) {
	l := Local{Exists: true, Exported: true, Export: Export{Cluster: "west", Ports: tcp(80)}}
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

func TestAConflictNamesTheFieldAndWhoSaysWhat(t *testing.T) {
	l := Local{Exists: true, Exported: true, Export: Export{Cluster: "west", Ports: tcp(80)}}
	for want, other := range map[string]Export{
		"different spec.ports: east has p8080 8080/TCP, west has p80 80/TCP":                                           {Cluster: "east", Ports: tcp(8080)},
		"different spec.clusterIP (headless or not): east has a headless service with p80 80/TCP, west has p80 80/TCP": {Cluster: "east", Ports: tcp(80), Headless: true},
		"different spec.sessionAffinity: east has p80 80/TCP and session affinity ClientIP, west has p80 80/TCP":       {Cluster: "east", Ports: tcp(80), Affinity: "ClientIP"},
	} {
		if got := Conditions(l, []Export{other})[2]; got.Status != "True" || !strings.Contains(got.Message, want) {
			t.Errorf("%s %s: %q; want %q", got.Kind, got.Status, got.Message, want)
		}
	}
}
