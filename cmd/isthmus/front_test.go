package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/federation/linkcard"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
)

// service is the manifest of a gateway's Service.
func service(kind, more string) string {
	return "---\napiVersion: v1\nkind: Service\nmetadata: {name: isthmus-gateway}\nspec:\n  type: " + kind + "\n  ports: [{port: 15008, nodePort: 31008}]\n" + more
}

// onNodes are two gateways on nodes, one of which has an external address, and a pod that waits
// for a node. kubectl of the test takes "get pods --namespace" for an object of that name.
const onNodes = `---
kind: Pods
metadata: {name: --namespace}
items:
- {spec: {nodeName: n1, containers: [{ports: [{containerPort: 15020, hostPort: 1}, {containerPort: 15008}]}]}}
- {spec: {nodeName: n2, containers: [{ports: []}]}}
- {spec: {containers: []}}
---
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 10.1.0.5}, {type: ExternalIP, address: 192.0.2.5}]}
---
kind: Node
metadata: {name: n2}
status: {addresses: [{type: Hostname, address: n2}, {type: InternalIP, address: 10.1.0.6}]}
`

// unscheduled are two gateways that wait for nodes.
const unscheduled = `---
kind: Pods
metadata: {name: --namespace}
items:
- {metadata: {name: g-1}, spec: {containers: [{ports: [{containerPort: 15008}]}]}, status: {conditions: [{type: PodScheduled, status: 'False', message: 0/3 nodes are available}]}}
- {metadata: {name: g-2}, spec: {containers: [{ports: []}]}}
`

// deployed is a Deployment of gateways that has no pods yet.
const deployed = `---
kind: Deployment
metadata: {name: isthmus-gateway}
spec: {replicas: 2, template: {spec: {containers: [{ports: [{containerPort: 15008}]}]}}}
`

// What says why there is no address is described, and check says so.
func TestCheckDescribesWhatLacksAnAddress(t *testing.T) {
	for has, want := range map[string]string{
		service("LoadBalancer", ""):           "service isthmus-gateway",
		service("NodePort", "") + unscheduled: "pods --selector app.kubernetes.io/name=isthmus-gateway",
		service("NodePort", "") + onNodes:     "nodes",
		service("ClusterIP", ""):              "service isthmus-gateway",
	} {
		program, _ := storingKubectl(t, strings.NewReplacer("address: ", "address: x", "- {spec: {containers: []}}\n", "").Replace(has)+deployed)
		_, out, _ := isthmus(t, "check", "--contexts", "w", "--kubectl", program)
		_, after, _ := strings.Cut(out, "! ISTH-107")
		if wants := "describe " + want + " # without a load balancer"; !strings.Contains(after, wants) {
			t.Errorf("%s:\n%s\nwant %q", has, after, wants)
		}
	}
}

const balanced = "status: {loadBalancer: {ingress: [{ip: 203.0.113.7}, {hostname: gw.example.com}]}}\n"

func TestFrontIsWhatAClusterSaysOfItsGateways(t *testing.T) {
	hosts := "---\nkind: ConfigMap\nmetadata: {name: isthmus-gateway}\ndata:\n  gateway.yaml: |\n    address: {hosts: ['nat.example.com:443']}\n"
	for name, x := range map[string]struct {
		has, want, why string
		pending        bool
	}{
		"a load balancer":       {service("LoadBalancer", balanced), "203.0.113.7:15008 gw.example.com:15008", "", false},
		"a pending one":         {service("LoadBalancer", ""), "", "pending", true},
		"node ports":            {service("NodePort", "") + onNodes, "10.1.0.6:31008 192.0.2.5:31008", "", false},
		"no node":               {service("NodePort", ""), "", "no gateway is on a node", false},
		"a hostPort":            {service("ClusterIP", "") + strings.Replace(onNodes, "containerPort: 15008", "containerPort: 15008, hostPort: 443", 1), "192.0.2.5:443", "", false},
		"one at an address":     {service("ClusterIP", "") + strings.Replace(onNodes, "containerPort: 15008", "containerPort: 15008, hostPort: 443, hostIP: 192.0.2.9", 1), "192.0.2.9:443", "", false},
		"the node's network":    {service("ClusterIP", "") + strings.ReplaceAll(onNodes, "nodeName", "hostNetwork: true, nodeName"), "10.1.0.6:15008 192.0.2.5:15008", "", false},
		"external IPs":          {service("ClusterIP", "  externalIPs: [192.0.2.1]\n"), "192.0.2.1:15008", "", false},
		"nothing":               {service("ClusterIP", ""), "", "ClusterIP", false},
		"node ports, no node":   {service("NodePort", "") + unscheduled, "", "pod g-1 is not scheduled: 0/3 nodes are available, pod g-2 is not scheduled", true},
		"a hostPort, no node":   {service("ClusterIP", "") + strings.Replace(unscheduled, "containerPort: 15008", "containerPort: 15008, hostPort: 443", 1), "", "pod g-1 is not scheduled: 0/3 nodes are available", true},
		"no hostPort, no node":  {service("ClusterIP", "") + unscheduled, "", "no gateway has a hostPort", false},
		"a node without any":    {service("NodePort", "") + strings.ReplaceAll(onNodes, "address: ", "address: x"), "", "node n1 of pod", true},
		"node ports, no pods":   {service("NodePort", "") + deployed, "", "pod of Deployment isthmus-gateway is not scheduled", true},
		"a hostPort, no pods":   {service("ClusterIP", "") + strings.Replace(deployed, "15008", "15008, hostPort: 443", 1), "", "pod of Deployment isthmus-gateway", true},
		"no hostPort, no pods":  {service("ClusterIP", "") + deployed, "", "no gateway has a hostPort", false},
		"no replicas":           {service("NodePort", "") + strings.Replace(deployed, "replicas: 2", "replicas: 0", 1), "", "no gateway is on a node", false},
		"no Service":            {"", "", "install the chart", false},
		"hosts go before it":    {service("LoadBalancer", balanced) + hosts, "nat.example.com:443", "", false},
		"a version 6 of a load": {service("LoadBalancer", "status: {loadBalancer: {ingress: [{ip: '2001:db8::1'}]}}\n"), "[2001:db8::1]:15008", "", false},
	} {
		program, _ := storingKubectl(t, x.has)
		f, err := frontOf(t.Context(), kubectl{program: program})
		if got := strings.Join(f.addresses, " "); err != nil || got != x.want || f.pending != x.pending || !strings.Contains(f.why, x.why) || (f.why == "") != (x.want != "") {
			t.Errorf("%s: %+v, %v; want %q and %q", name, f, err, x.want, x.why)
		}
	}
}

func TestWrittenAddressesHaveAPort(t *testing.T) {
	for in, want := range map[string]string{
		"203.0.113.7": "203.0.113.7:15008", "203.0.113.7:31008": "203.0.113.7:31008", "gw.example.com": "gw.example.com:15008", "gw.example.com:443": "gw.example.com:443",
		"2001:db8::1": "[2001:db8::1]:15008", "[2001:db8::1]": "[2001:db8::1]:15008", "[2001:db8::1]:443": "[2001:db8::1]:443",
	} {
		if got, err := dialledAll([]string{in, in}); err != nil || !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %q, %v; want %s once", in, got, err, want)
		}
	}
	for _, in := range []string{"", "0.0.0.0", "203.0.113.7:0", "https://gw.example.com", "gw..example.com", "224.0.0.1:15008", "[::]:15008",
		"127.0.0.1", "127.9.9.9:15008", "::1", "[::ffff:127.0.0.1]:15008", "localhost", "Localhost.:15008", "gw.localhost", "169.254.1.1", "fe80::1", "[fe80::1]:15008", "fe80::1%eth0", "255.255.255.255:15008"} {
		if got, err := dialledAll([]string{in}); err == nil || !strings.Contains(err.Error(), "--address") || !strings.Contains(err.Error(), "write") {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

// linkable are two clusters, west and east, in a directory of their own; west has this Service.
func linkable(t *testing.T, service string) (program, applied string) {
	t.Helper()
	t.Chdir(t.TempDir())
	_, west, _ := isthmus(t, "init", "--network", "west", "--trust-domain", "west.local")
	_, east, _ := isthmus(t, "init", "--network", "east", "--trust-domain", "east.local")
	program, _ = storingKubectl(t, east)
	code, card, errs := isthmus(t, "link", "card", "--address", "192.0.2.9", "--kubectl", program)
	if code != exitOK {
		t.Fatal(errs)
	}
	if err := os.WriteFile("east.card", []byte(card), 0o600); err != nil {
		t.Fatal(err)
	}
	return storingKubectl(t, west+service)
}

// link waits for no address that is there, no longer than it is told to, and never where that
// is of no use; it links nothing then.
func TestLinkWaitsForAddresses(t *testing.T) {
	for name, x := range map[string]struct {
		service, args string
		code          int
		says          []string
	}{
		"it is there":         {service("LoadBalancer", balanced), "--wait 1h", exitOK, nil},
		"pending to the end":  {service("LoadBalancer", ""), "--wait 10ms", exitFinding, []string{"isthmus: waiting for an address of network \"west\" (context w, Service isthmus-gateway): its load balancer is pending", "after 10ms", "describe service isthmus-gateway", "--address", "nothing was linked"}},
		"on no node":          {service("NodePort", "") + unscheduled, "--wait 10ms", exitFinding, []string{"isthmus: waiting for an address of network \"west\" (context w,", "pod g-1 is not scheduled: 0/3 nodes", "after 10ms", "describe pods --selector app.kubernetes.io/name=isthmus-gateway", "nothing was linked"}},
		"of no use":           {service("NodePort", ""), "--wait 1h", exitFinding, []string{"NodePort", "no gateway is on a node", "--address west=ADDRESS", "nothing was linked"}},
		"written":             {service("NodePort", ""), "--wait 1h --address west=192.0.2.1:31008", exitOK, nil},
		"not waited for":      {service("LoadBalancer", ""), "", exitOK, []string{`network "west": it has no address`, "--wait", "--address west="}},
		"of another network":  {service("NodePort", ""), "--address wset=192.0.2.1", exitUsage, []string{"wset", `["west" "east"]`}},
		"of no network":       {service("NodePort", ""), "--address 192.0.2.1", exitUsage, []string{"NETWORK=ADDRESS"}},
		"of two networks":     {service("NodePort", ""), "--address west=192.0.2.1,east=192.0.2.1:15008", exitUsage, []string{"--address: 192.0.2.1:15008", `"west" and "east"`, "of its own"}},
		"of another already":  {service("NodePort", ""), "--address west=192.0.2.9", exitUsage, []string{"--address: 192.0.2.9:15008", `"west" and "east"`, "unlink"}},
		"both ways":           {service("NodePort", ""), "--address west=192.0.2.1,west=", exitUsage, []string{"west=", "leave one of them out"}},
		"of this machine":     {service("NodePort", ""), "--address west=127.0.0.1", exitUsage, []string{`--address: "127.0.0.1" is a loopback address`, "write an address"}},
		"no unit":             {service("NodePort", ""), "--wait 4", exitUsage, []string{"did you mean 4s?"}},
		"of no address":       {service("NodePort", ""), "--address west=https://x", exitUsage, []string{"--address", "https://x", "such as"}},
		"a time that is none": {service("NodePort", ""), "--wait -1s", exitUsage, []string{"--wait", "5m"}},
	} {
		t.Run(name, func(t *testing.T) {
			program, _ := linkable(t, x.service)
			code, out, errs := isthmus(t, append(strings.Fields("link --contexts w east.card --kubectl "+program), strings.Fields(x.args)...)...)
			if code != x.code || (out != "") != (x.code == exitOK) {
				t.Errorf("exits with %d, want %d; it prints\n%s%s", code, x.code, out, errs)
			}
			wantIn(t, errs, x.says...)
			if strings.Count(errs, "waiting for") > 1 {
				t.Errorf("it says twice what it waits for: %s", errs)
			}
		})
	}
}

// A load balancer that gets its address while link waits is linked with that one.
func TestLinkTakesTheAddressThatItWaitedFor(t *testing.T) {
	program, applied := linkable(t, service("LoadBalancer", ""))
	dir := filepath.Dir(program)
	// The address comes with the third question.
	script := fmt.Sprintf("#!/bin/sh\ncase \"$1 $2\" in\n'get service') echo x >> %[1]s/asked; [ $(wc -l < %[1]s/asked) -lt 3 ] && s='{}' || s='{\"loadBalancer\":{\"ingress\":[{\"ip\":\"203.0.113.8\"}]}}'; echo '{\"spec\":{\"type\":\"LoadBalancer\"},\"status\":'$s'}' ;;\nget*) [ ! -f %[1]s/$2-$3 ] || cat %[1]s/$2-$3 ;;\napply*) cat >> %[2]s ;;\nesac\n", dir, applied)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	west := &linking{kubectl: kubectl{program: program, context: "w"}, card: linkcard.Card{Network: "west"}}
	cmd := newLinkCommand()
	var said strings.Builder
	cmd.SetErr(&said)
	cmd.SetContext(t.Context())
	if err := awaitFronts(cmd, []*linking{west}, nil, 1<<40); err != nil || !slices.Equal(west.card.Addresses, []string{"203.0.113.8:15008"}) {
		t.Errorf("%+v, %v", west.card, err)
	}
	if strings.Count(said.String(), "\n") != 1 {
		t.Errorf("it says\n%s", said.String())
	}
}

func TestWrittenAddressesGoBeforeThoseOfCards(t *testing.T) {
	program, _ := linkable(t, service("LoadBalancer", balanced))
	code, out, errs := isthmus(t, strings.Fields("link --contexts w east.card --kubectl "+program+" --address east=198.51.100.1,east=198.51.100.2:443")...)
	if code != exitOK || strings.Contains(out, "192.0.2.9") {
		t.Errorf("%d, %s\n%s", code, errs, out)
	}
	wantIn(t, out, "198.51.100.1:15008", "198.51.100.2:443")
}

// A cluster that dials another where it was before, or nowhere, is said to.
func TestCheckOfWhereGatewaysAreDialled(t *testing.T) {
	for name, x := range map[string]struct {
		known, now []string
		want       string // empty: well
	}{
		"the same":              {[]string{"203.0.113.7:15008"}, []string{"203.0.113.7:15008"}, ""},
		"another":               {[]string{"203.0.113.7:15008"}, []string{"203.0.113.8:15008"}, "dialed at 203.0.113.7:15008, which it does not have: it has 203.0.113.8:15008"},
		"one of two":            {[]string{"203.0.113.7:15008", "203.0.113.8:15008"}, []string{"203.0.113.8:15008"}, "dialed at 203.0.113.7:15008,"},
		"another port":          {[]string{"203.0.113.7:31008"}, []string{"203.0.113.7:15008"}, "203.0.113.7:31008"},
		"none":                  {nil, []string{"203.0.113.8:15008"}, "no address of network"},
		"nobody says":           {[]string{"203.0.113.7:15008"}, nil, ""},
		"a name of it":          {[]string{"gw.example.com:15008"}, []string{"203.0.113.7:15008"}, ""},
		"a name of another":     {[]string{"gw.example.com:15008"}, []string{"203.0.113.9:15008"}, "gw.example.com"},
		"a name nobody knows":   {[]string{"gone.example.com:15008"}, []string{"203.0.113.7:15008"}, "gone.example.com"},
		"another name of it":    {[]string{"gw.example.com:15008"}, []string{"lb.example.com:15008"}, ""},
		"in other letters":      {[]string{"GONE.example.com.:15008"}, []string{"gone.example.com:15008"}, ""},
		"another form of an IP": {[]string{"[2001:db8:0::1]:15008"}, []string{"[2001:db8::1]:15008"}, ""},
	} {
		c := &checkup{lookup: func(_ context.Context, host string) ([]string, error) {
			if host == "gw.example.com" || host == "lb.example.com" {
				return []string{"203.0.113.7"}, nil
			}
			return nil, errors.New("no such host")
		}}
		c.dialled(t.Context(), "x", &checkedCluster{byHand: []string{"south"}}, keyfile.Network{Name: "west", Link: keyfile.Link{Addresses: x.known}}, &checkedCluster{addresses: x.now})
		switch {
		case len(x.now) == 0:
			if len(c.all) != 0 {
				t.Errorf("%s: %+v; nothing is known", name, c.all)
			}
		case len(c.all) != 1 || c.all[0].Code != "ISTH-206" || (c.all[0].Found == "") != (x.want == "") || !strings.Contains(c.all[0].Found, x.want):
			t.Errorf("%s: %+v; want %q", name, c.all, x.want)
		case x.want != "" && (c.all[0].Level != checkWarning || !strings.Contains(c.all[0].Remedy, "isthmus link again")):
			t.Errorf("%s: %+v", name, c.all[0])
		}
		c.all = nil
		if c.dialled(t.Context(), "x", &checkedCluster{byHand: []string{"south", "west"}}, keyfile.Network{Name: "west", Link: keyfile.Link{Addresses: x.known}}, &checkedCluster{addresses: x.now}); len(c.all) != 0 {
			t.Errorf("%s: %+v of an address that link was given", name, c.all)
		}
	}
}

// A network that has changed its trust domain is believed for both: who links it is told.
func TestLinkSaysWhatIsBelievedBesideTheCard(t *testing.T) {
	t.Chdir(t.TempDir())
	_, east, _ := isthmus(t, "init", "--network", "east", "--trust-domain", "east.local")
	_, west, _ := isthmus(t, "init", "--network", "west", "--trust-domain", "west.local")
	link := func(known, west string) (out, errs string) {
		program, _ := storingKubectl(t, west)
		code, card, errs := isthmus(t, "link", "card", "--address", "192.0.2.1", "--kubectl", program)
		if code != exitOK || os.WriteFile("west.card", []byte(card), 0o600) != nil {
			t.Fatal(errs)
		}
		program, _ = storingKubectl(t, east+service("LoadBalancer", balanced)+known)
		if code, out, errs = isthmus(t, "link", "--contexts", "e", "west.card", "--kubectl", program); code != exitOK {
			t.Fatal(errs)
		}
		return out, errs
	}
	known, errs := link("", west)
	if errs != "" {
		t.Errorf("linked first: %s", errs)
	}
	if err := os.RemoveAll("west/ca"); err != nil {
		t.Fatal(err)
	}
	succeed(t, "ca", "init", "--dir", "west/ca", "--trust-domain", "new.local")
	_, west, _ = isthmus(t, "init", "--network", "west", "--trust-domain", "new.local")
	if _, errs = link(known, west); strings.Count(errs, "\n") != 1 {
		t.Errorf("it says\n%s", errs)
	}
	wantIn(t, errs, `network "west" is believed for trust domain "west.local" too`, "isthmus unlink")
}
