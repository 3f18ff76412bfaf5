package gateway

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery/kube"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// A Service whose load balancer has no address for a moment keeps the last one, with a problem
// that says so; another one is told at once, and none when it has had none for long.
func TestTheLastAddressIsToldForAWhile(t *testing.T) {
	const pending = "the load balancer of Service a/b is pending"
	start := time.Unix(1_800_000_000, 0).UTC()
	a, b := kube.Address{Host: "192.0.2.1", Port: 15008}, kube.Address{Host: "gw.example.com", Port: 15008}
	var last lastAddress
	for i, step := range []struct {
		after time.Duration
		found []kube.Address
		want  []record.Address
		wrong string
	}{
		{0, nil, nil, "no address for other networks: " + pending},
		{time.Hour, []kube.Address{a}, []record.Address{record.Address(a)}, ""},
		{2 * time.Hour, nil, []record.Address{record.Address(a)}, "(192.0.2.1:15008) is told until 2027-01-15T10:10:00Z: " + pending},
		{2*time.Hour + 9*time.Minute, nil, []record.Address{record.Address(a)}, "is told until 2027-01-15T10:10:00Z: " + pending},
		{2*time.Hour + 9*time.Minute, []kube.Address{b}, []record.Address{record.Address(b)}, ""},
		{2*time.Hour + 19*time.Minute, nil, []record.Address{record.Address(b)}, "gw.example.com:15008"},
		{2*time.Hour + 28*time.Minute, nil, []record.Address{record.Address(b)}, "gw.example.com:15008"},
		{2*time.Hour + 29*time.Minute, nil, nil, "no address for other networks: " + pending},
		{3 * time.Hour, nil, nil, "no address for other networks: " + pending},
		{4 * time.Hour, []kube.Address{a, b}, []record.Address{record.Address(a), record.Address(b)}, ""},
	} {
		problem := pending
		if len(step.found) > 0 {
			problem = ""
		}
		got, wrong := last.keep(step.found, problem, start.Add(step.after))
		if !slices.Equal(got, step.want) || (step.wrong == "") != (wrong == "") || !strings.Contains(wrong, step.wrong) {
			t.Errorf("step %d: %v, %q; want %v and %q", i, got, wrong, step.want, step.wrong)
		}
	}
	var many []kube.Address
	for i := range record.MaxAddresses + 3 {
		many = append(many, kube.Address{Host: fmt.Sprint("192.0.2.", i), Port: 1})
	}
	if got, _ := last.keep(many, "", start); len(got) != record.MaxAddresses {
		t.Errorf("%d addresses; want %d", len(got), record.MaxAddresses)
	}
}
