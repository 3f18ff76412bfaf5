package policy

import (
	"maps"
	"slices"
	"testing"
)

// Who writes a policy for the port of a service is told on which its pods listen.
func TestPoliciesThatNamePortsOfServices(t *testing.T) {
	at := func(ports ...uint16) *Authorization {
		return &Authorization{Metadata: Metadata{Namespace: "demo", Called: "a"}, Action: Deny, Rules: []Rule{{Clause{{DestinationPorts: Field[uint16]{Is: ports}}}}}}
	}
	except := at()
	except.Rules = []Rule{{Clause{{DestinationPorts: Field[uint16]{Not: []uint16{80}}}}}}
	web, other := at(80), at(80)
	web.Selector, other.Selector = Selector{"app": "web"}, Selector{"app": "other"}
	everywhere := at(80)
	everywhere.Namespace = "root"
	elsewhere := at(80)
	elsewhere.Namespace = "shop"
	workloads := []Answers{
		{Workload{"demo", map[string]string{"app": "web"}}, maps.All(map[uint16]uint16{80: 8080, 9090: 9090})},
		{Workload{"demo", map[string]string{"app": "none"}}, maps.All(map[uint16]uint16{})},
	}
	for name, x := range map[string]struct {
		o    Object
		want []uint16
	}{
		"that of the service":        {at(80), []uint16{80}},
		"that of the application":    {at(8080), nil},
		"both":                       {at(80, 8080), nil},
		"one and the same":           {at(9090), nil},
		"one of no service":          {at(7070), nil},
		"what it is not for":         {except, nil},
		"of the pods it selects":     {web, []uint16{80}},
		"of pods it does not select": {other, nil},
		"of the root namespace":      {everywhere, []uint16{80}},
		"of another namespace":       {elsewhere, nil},
		"a mode of a port":           {&PeerAuthentication{Metadata: Metadata{Namespace: "demo", Called: "a"}, Selector: Selector{"app": "web"}, Ports: map[uint16]Mode{80: Strict}}, []uint16{80}},
	} {
		var got []uint16
		for _, m := range NewSet("root", []Object{x.o}).Misported(slices.Values(workloads)) {
			got = append(got, m.Port)
			if m.Listen != 8080 || m.Policy != x.o.Name() {
				t.Errorf("%s: %+v", name, m)
			}
		}
		if !slices.Equal(got, x.want) {
			t.Errorf("%s: ports %d, want %d", name, got, x.want)
		}
	}
	if got, want := (Misported{at().Name(), 80, 8080}).String(), "AuthorizationPolicy demo/a names port 80, which is that of a service, and its pods listen on 8080: policies go by the latter (targetPort), so that what it says of 80 holds for nobody: write 8080, or both"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
