package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/drill/demoapp"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// What Kubernetes draws as the UID of a pod names it to nobody: people read and write
// namespace/name, and programs find the UID beside it.
func TestPodsAreCalledByNamespaceAndName(t *testing.T) {
	const shop1, shop2, hello1, hello2 = "1a804e04-3d4e-4bb7-8c5c-6b0d0a0f6c11", "1a804e04-3d4e-4bb7-8c5c-6b0d0a0f6c12",
		"3c8bab73-5fbf-4254-9d3f-5a1c7d2f8e11", "3c8bab73-5fbf-4254-9d3f-5a1c7d2f8e12"
	s := &site{Mesh: meshtest.New(t)}
	s.Networks("east", "west")
	s.Service("hello", 80, 8080)
	s.Service("dns", 53, 5353)
	s.Gateway("east", "gw-1")
	s.Gateway("west", "gw-1")
	pod := func(network, node, name, uid string, services ...string) *meshtest.Pod {
		p := s.Pod(network, node, name, services...)
		p.Edit(func(w *discovery.Workload) { w.UID = uid })
		p.UID = uid
		return p
	}
	s.at = pod("east", "east-1", "shop-1", shop1).Outbound(hello + ":80")
	pod("east", "east-1", "shop-2", shop2)
	var apps []*demoapp.App
	for i, uid := range []string{hello1, hello2} {
		apps = append(apps, pod("west", "west-1", []string{"hello-1", "hello-2"}[i], uid, "hello").App(8080))
	}
	pod("west", "west-1", "dns-1", "77aa0b9c-0000-4254-9d3f-5a1c7d2f8e13", "dns").Edit(func(w *discovery.Workload) { w.Protocol = "TCP" })
	s.Start()
	east1, west1, gateway := s.Process("node proxy east-1").Admin.String(), s.Process("node proxy west-1").Admin.String(), s.Process("gateway west/gw-1").Admin.String()
	if err := apps[0].Refuse(context.Background(), 8080); err != nil {
		t.Fatal(err)
	}
	all := strings.Join([]string{east1, west1, gateway}, ",")
	var text string
	meshtest.Eventually(t, "both networks know that it is out", func() bool {
		meshtest.Hello(s.at)
		_, text, _ = isthmus(t, "explain", "default/shop-1", hello+":80", "--admin", east1+","+gateway)
		return strings.Count(text, "default/hello-1:8080 out for ") == 2 && strings.Contains(text, "default/hello-2:8080 in")
	})
	if strings.Contains(text, "3c8bab73") {
		t.Errorf("explain names pods by their UIDs:\n%s", text)
	}
	_, text, _ = isthmus(t, "status", "--admin", all)
	wantIn(t, text, "default/hello-1 (refused, ", "default/hello-1:8080 (refused, ")
	if strings.Count(text, "default/hello-1 (refused, ") != 2 || strings.Contains(text, "3c8bab73") {
		t.Errorf("status names pods by their UIDs:\n%s", text)
	}
	for line := range strings.Lines(text) {
		if dns := strings.Contains(line, " dns."); dns != strings.Contains(line, "no pod in the mesh") {
			t.Errorf("of a service without a pod in the mesh, and of no other, that is to be said: %s", line)
		}
	}
	wantIn(t, text, "dns.default.svc.cluster.local")

	_, text, _ = isthmus(t, "status", "-o", "json", "--admin", gateway)
	var list []answer.Status
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list) != 1 || len(list[0].Services) != 2 || !list[0].Services[0].NoPod || len(list[0].Services[1].Out) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	if out := list[0].Services[1].Out[0]; out.Endpoint != hello1 || out.Pod != "default/hello-1" {
		t.Errorf("endpoint %q, pod %q; want %s and default/hello-1", out.Endpoint, out.Pod, hello1)
	}
	_, text, _ = isthmus(t, "explain", "-o", "json", "default/shop-1", hello+":80", "--admin", east1)
	wantIn(t, text, `"source": "`+shop1+`"`)
	if code, _, errs := isthmus(t, "explain", shop1, hello+":80", "--admin", east1); code != exitOK {
		t.Errorf("a UID as the source: exit %d: %s", code, errs)
	}
	code, _, errs := isthmus(t, "explain", "demo/nobody", hello+":80", "--admin", east1)
	if wantIn(t, errs, `"demo/nobody"`, "default/shop-1", "default/shop-2"); code != exitUsage || strings.Contains(errs, "1a804e04") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

func TestDifferencesCallPodsByTheirNames(t *testing.T) {
	var x explained
	if err := json.Unmarshal([]byte(`{"processes":[{"process":"node proxy east-1","network":"east","candidates":[{"kind":"share","name":"west","in":true}]},
		{"process":"gateway gw-1","network":"west","candidates":[{"kind":"pod","name":"3c8bab73","pod":"demo/hello-1","causes":[{"word":"reported"}]}]}]}`), &x); err != nil {
		t.Fatal(err)
	}
	if list := differences(x.Processes[0], x.Processes[1]); len(list) != 1 || !strings.HasPrefix(list[0], "demo/hello-1 is ") {
		t.Errorf("differences %q; want demo/hello-1 by its name", list)
	}
}
