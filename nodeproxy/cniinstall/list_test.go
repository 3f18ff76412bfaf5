//go:build linux

package cniinstall

import (
	"slices"
	"strings"
	"testing"
)

// The order of fields, spaces and numbers are as somebody wrote them, with the entry and after it.
func TestTheTextOfAListStaysAsItWasWritten(t *testing.T) {
	const indented = "{\n\t\"name\": \"<pods>\",\n\t\"plugins\": [\n\t\t{\"type\": \"ptp\", \"mtu\": 1.450e3},\n\t\t{\"type\": \"portmap\"}\n\t],\n\t\"cniVersion\": \"1.0.0\"}"
	for _, was := range []string{main, indented} {
		n := newNode(t, map[string]string{"10-pods.conflist": was})
		must(t, n.configure())
		entry := n.text(t, "10-pods.conflist")
		before, _, _ := strings.Cut(was, "{\"type\": \"portmap\"}")
		if !strings.HasPrefix(entry, strings.TrimSuffix(before, "]}")) || was == indented && !strings.Contains(entry, "},\n\t\t{\"type\":\"isthmus-cni\"") {
			t.Errorf("with the entry it is\n%s", entry)
		}
		must(t, n.unconfigure())
		if got := n.text(t, "10-pods.conflist"); got != was {
			t.Errorf("afterwards it is\n%s\nwant\n%s", got, was)
		}
	}
}

// Somebody has copied the entry: a pod waits once, and nothing of it stays.
func TestAnEntryThatIsThereTwice(t *testing.T) {
	const ours = `{"type":"isthmus-cni"}`
	for _, plugins := range []string{`[{"type":"ptp"},` + ours + `,` + ours + `]`, `[` + ours + `,{"type":"ptp"},` + ours + `]`, `[` + ours + `,` + ours + `,{"type":"ptp"}]`} {
		n := newNode(t, map[string]string{"10-pods.conflist": `{"cniVersion":"1.0.0","plugins":` + plugins + `}`})
		must(t, n.configure())
		if got := n.types(t, "10-pods.conflist"); !slices.Equal(got, []string{"ptp", "isthmus-cni"}) {
			t.Errorf("%s calls %v", plugins, got)
		}
		n.put(t, "10-pods.conflist", `{"cniVersion":"1.0.0","plugins":`+plugins+`}`)
		must(t, n.unconfigure())
		if got := n.types(t, "10-pods.conflist"); !slices.Equal(got, []string{"ptp"}) {
			t.Errorf("%s calls %v afterwards", plugins, got)
		}
	}
}

// Two numbers that are the same as a float64 are two.
func TestAListOfAnotherNumberIsSomebodyElses(t *testing.T) {
	list := `{"cniVersion":"1.0.0","plugins":[{"type":"ptp","big":12345678901234567891}]}`
	n := newNode(t, map[string]string{"10-pods.conf": `{"cniVersion":"1.0.0","type":"ptp","big":12345678901234567890}`, "10-pods.conflist": list})
	if err := n.configure(); err == nil || !strings.Contains(err.Error(), "is there as well, and another one") {
		t.Errorf("it is said as %v", err)
	}
	if got := n.text(t, "10-pods.conflist"); got != list {
		t.Errorf("it is %s", got)
	}
}
