package helm

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/controller"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// constraints are what values.yaml does not say of a value by its type: what the API server or the
// programs refuse, helm is to refuse before.
var constraints = map[string]map[string]any{
	"network":                   {"pattern": "^$|" + whole(label)},
	"trustDomain":               {"pattern": whole(trustDomain)},
	"systemNamespace":           {"pattern": "^$|" + whole(label)},
	"rootNamespace":             {"pattern": "^$|" + whole(label)},
	"image.registry":            {"pattern": such("registry.example/isthmus", "[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*/?$")},
	"image.tag":                 {"pattern": "^$|" + such("v1.2.3", "[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")},
	"image.pullPolicy":          {"enum": []string{"Always", "IfNotPresent", "Never"}},
	"image.pullSecrets":         {"items": text(whole(subdomain))},
	"objects.networkKey":        {"pattern": whole(subdomain)},
	"objects.ca":                {"pattern": whole(subdomain)},
	"objects.root":              {"pattern": whole(subdomain)},
	"objects.networks":          {"pattern": whole(subdomain)},
	"log.level":                 {"enum": []string{"debug", "info", "warn", "error"}},
	"gateway.replicas":          {"minimum": 1},
	"gateway.lameDuckSeconds":   {"minimum": 0},
	"gateway.drainSeconds":      {"minimum": 1},
	"gateway.minAvailable":      {"minimum": 1},
	"gateway.resources":         resources,
	"gateway.priorityClassName": {"pattern": "^$|" + whole(subdomain)},
	"gateway.nodeSelector":      words,
	"gateway.tolerations":       objects,
	"gateway.podAnnotations":    words,
	"gateway.podLabels":         labels,
	"gateway.config": configOf(gateway.DefaultConfig(), map[string]any{
		"timeouts": map[string]any{"properties": map[string]any{"lameDuck": map[string]any{"type": "string"}}},
	}),
	"gateway.service.annotations":              words,
	"gateway.service.type":                     {"enum": []string{"LoadBalancer", "NodePort", "ClusterIP"}},
	"gateway.service.externalTrafficPolicy":    {"enum": []string{"Local", "Cluster"}},
	"gateway.service.externalIPs":              {"items": text(whole(ip))},
	"gateway.service.loadBalancerSourceRanges": {"items": text(whole(cidr))},
	"gateway.service.nodePort":                 {"anyOf": []any{map[string]any{"const": 0}, map[string]any{"minimum": 30000, "maximum": 32767}}},
	"gateway.hostPort":                         {"minimum": 0, "maximum": 65535},
	"gateway.locality.region":                  labelValue,
	"gateway.locality.zone":                    labelValue,
	"gateway.locality.subzone":                 labelValue,
	"gateway.service.quic":                     {"enum": []string{"shared", "separate", "none"}},
	"gateway.service.quicAnnotations":          words,
	"gateway.service.ipFamilyPolicy":           {"enum": []string{"SingleStack", "PreferDualStack", "RequireDualStack"}},
	"controller.replicas":                      {"minimum": 1},
	"controller.resources":                     resources,
	"controller.priorityClassName":             {"pattern": "^$|" + whole(subdomain)},
	"controller.nodeSelector":                  words,
	"controller.tolerations":                   objects,
	"controller.podAnnotations":                words,
	"controller.podLabels":                     labels,
	"controller.startupTaint":                  {"pattern": "^$|" + such("example.com/starting", "("+subdomain+"/)?"+name+"$")},
	"controller.config":                        configOf(controller.DefaultConfig(), nil),
	"nodeProxy.drainSeconds":                   {"minimum": 1},
	"nodeProxy.capture.scope":                  {"enum": []string{"off", "vips", "all", "release"}},
	"nodeProxy.cni.failurePolicy":              {"enum": []string{"Ignore", "Fail"}},
	"nodeProxy.cni.timeout":                    {"pattern": such("5s", "([1-9][0-9]{2,3}ms|([1-9]|[12][0-9]|30)s)$")},
	"nodeProxy.cni.excludeNamespaces":          {"items": text(whole(label))},
	"nodeProxy.cni.binDir":                     directory,
	"nodeProxy.cni.confDir":                    directory,
	"nodeProxy.cni.socketDir":                  {"pattern": such("/run/isthmus", path+"$"), "maxLength": 80},
	"nodeProxy.cni.resources":                  resources,
	"nodeProxy.stateDir":                       {"pattern": such("/var/lib/isthmus", path+"$")},
	"nodeProxy.resources":                      resources,
	"nodeProxy.priorityClassName":              {"pattern": "^$|" + whole(subdomain)},
	"nodeProxy.nodeSelector":                   words,
	"nodeProxy.tolerations":                    objects,
	"nodeProxy.podAnnotations":                 words,
	"nodeProxy.podLabels":                      labels,
	"nodeProxy.config": configOf(nodeproxy.DefaultConfig(), map[string]any{
		"retry":    map[string]any{"type": "object", "properties": map[string]any{"early": map[string]any{"type": "boolean"}, "hedge": map[string]any{"type": "boolean"}}},
		"socks":    listeners(nil),
		"outbound": listeners(map[string]any{"to": text(such("hello.demo.svc.cluster.local:80", `([^:\[\]]+|\[[^\[\]]+\]):`+port+"$"))}),
		"capture": map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{
			"scope":          map[string]any{}, // the chart says what to set instead
			"originalSource": map[string]any{"enum": []any{"auto", "true", "false", true, false}},
			"proc":           text(such("/host/proc", "/")),
			"cniSocket":      text(such("/run/isthmus/cni.sock", "(/.{0,89})?$")),
			"ranges":         map[string]any{"type": "array", "items": text(whole(cidr))},
			"namespaces": map[string]any{"type": "array", "items": map[string]any{"type": "object", "additionalProperties": false, "required": []string{"workload", "path"},
				"properties": map[string]any{"workload": map[string]any{"type": "string", "minLength": 1}, "path": text(such("/run/netns/shop", "/")), "resolvConf": map[string]any{"type": "string"}}}},
		}},
	}),
	"networkPolicy.clients": {"items": map[string]any{"type": "object", "minProperties": 1, "additionalProperties": false,
		"properties": map[string]any{"namespaceSelector": map[string]any{"type": "object"}, "podSelector": map[string]any{"type": "object"}, "ipBlock": map[string]any{"type": "object"}}}},
	"networkPolicy.nodeCIDRs": {"items": text(whole(cidr))},
	"monitoring.interval":     {"pattern": such("30s", "[0-9]+(ms|s|m|h)$")},
}

// Patterns, of what Kubernetes and the programs take.
const (
	label       = `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`
	subdomain   = `[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*`
	name        = `[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`
	trustDomain = `[a-z0-9._-]{1,255}`
	octet       = `(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])`
	ipv4        = octet + `(\.` + octet + `){3}`
	hextet      = `[0-9a-fA-F]{1,4}`
	ipv6        = `((` + hextet + `:){7}` + hextet + `|(` + hextet + `:){1,7}:|(` + hextet + `:){1,6}:` + hextet + `|(` + hextet + `:){1,5}(:` + hextet + `){1,2}|(` + hextet + `:){1,4}(:` + hextet + `){1,3}|(` +
		hextet + `:){1,3}(:` + hextet + `){1,4}|(` + hextet + `:){1,2}(:` + hextet + `){1,5}|` + hextet + `:(:` + hextet + `){1,6}|:((:` + hextet + `){1,7}|:))`
	ip       = ipv4 + `|` + ipv6
	cidr     = ipv4 + `/(3[0-2]|[12]?[0-9])|` + ipv6 + `/(12[0-8]|1[01][0-9]|[1-9]?[0-9])`
	port     = `([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])`
	addrPort = `(` + ipv4 + `|\[` + ipv6 + `\]):` + port
	loopback = `(127(\.` + octet + `){3}|\[::1\]):` + port
	units    = `(ns|us|µs|ms|s|m|h)`
	// duration is above zero: some digit of it is none.
	duration = `([0-9]+(\.[0-9]+)?` + units + `)*([0-9]*[1-9][0-9]*(\.[0-9]+)?|[0-9]+\.[0-9]*[1-9][0-9]*)` + units + `([0-9]+(\.[0-9]+)?` + units + `)*`
	// path is absolute, and none of its parts is "..".
	path     = `(/([^/.][^/]*|\.([^/.][^/]*)?|\.\.[^/]+)?)+`
	quantity = `[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?`
)

// examples are of what the patterns take. Helm prints of a value that it refuses the pattern and nothing else, so that this has
// to say what to write: no part of it matches an example, which is there no times.
var examples = map[string]string{
	label: "west", subdomain: "isthmus-ca", name: "app", trustDomain: "cluster.local", ip: "192.0.2.1", cidr: "10.0.0.0/16", addrPort: "127.0.0.1:15000", loopback: "127.0.0.1:15000",
	duration: "10s", quantity: "64Mi",
}

// such begins a pattern with an example of what it takes.
func such(example, pattern string) string { return "^(such as " + example + "){0}" + pattern }

func whole(pattern string) string { return such(examples[pattern], "("+pattern+")$") }

func text(pattern string) map[string]any { return map[string]any{"type": "string", "pattern": pattern} }

var (
	words      = map[string]any{"additionalProperties": map[string]any{"type": "string"}}
	labels     = map[string]any{"additionalProperties": text("^$|" + such("shop", name+"$"))}
	labelValue = map[string]any{"pattern": "^$|" + such("eu-west-1", name+"$")}
	objects    = map[string]any{"items": map[string]any{"type": "object"}}
	amount     = map[string]any{"anyOf": []any{text(whole(quantity)), map[string]any{"type": "number", "minimum": 0}}}
	amounts    = map[string]any{"type": "object", "additionalProperties": amount}
	directory  = map[string]any{"pattern": such("/opt/cni/bin", path+"$")}
	resources  = map[string]any{"properties": map[string]any{"limits": amounts, "requests": amounts}}
	transport  = map[string]any{"enum": []string{lines.TCP, lines.QUIC, lines.Auto}}
)

// configOf describes the configuration of a program: the keys that it has and no others, as it does not start with one that
// it does not know, and of some what values they take.
func configOf(config any, more map[string]any) map[string]any {
	out := map[string]any{}
	for _, k := range strictyaml.Keys(config) {
		addKey(out, strings.Split(k.Name, "."))
	}
	has := out["properties"].(map[string]any)
	for k, v := range map[string]map[string]any{
		"network":     text(whole(label)),
		"trustDomain": text(whole(trustDomain)),
		"admin":       {"type": "object", "properties": map[string]any{"address": text(whole(loopback))}},
		"timeouts":    {"type": "object"},
		"lines":       {"type": "object", "properties": map[string]any{"transport": transport, "transports": map[string]any{"type": "object", "additionalProperties": transport}}},
	} {
		if of, known := has[k].(map[string]any); known {
			overlay(of, v)
		}
	}
	overlay(out, map[string]any{"properties": more})
	if timeouts, known := has["timeouts"].(map[string]any); known {
		for _, v := range timeouts["properties"].(map[string]any) {
			if of := v.(map[string]any); len(of) == 0 {
				overlay(of, text(whole(duration)))
			}
		}
	}
	return out
}

// addKey adds a key of a program to what describes a group of them; see strictyaml.Key.
func addKey(group map[string]any, names []string) {
	below := func(in map[string]any, key string) map[string]any {
		of, is := in[key].(map[string]any)
		if !is {
			of = map[string]any{}
			in[key] = of
		}
		return of
	}
	if names[0] == "*" {
		addKey(below(group, "additionalProperties"), names[1:])
		return
	}
	if group["properties"] == nil {
		group["properties"], group["additionalProperties"] = map[string]any{}, false
	}
	name, list := strings.CutSuffix(names[0], "[]")
	at := below(group["properties"].(map[string]any), name)
	if list {
		at = below(at, "items")
	}
	if len(names) > 1 {
		addKey(at, names[1:])
	}
}

// overlay adds to a description what more says. A key that the program does not have is a mistake of ours.
func overlay(to, more map[string]any) {
	for k, v := range more {
		of, is := to[k].(map[string]any)
		with, both := v.(map[string]any)
		if !is || !both {
			to[k] = v
			continue
		}
		for name := range with {
			if _, known := of[name]; k == "properties" && to["additionalProperties"] == false && !known {
				panic("no program has the key " + name)
			}
		}
		overlay(of, with)
	}
}

// listeners are those of node proxies: an address and whose connections arrive there.
func listeners(more map[string]any) map[string]any {
	p := map[string]any{"listen": text(whole(addrPort)), "workload": map[string]any{"type": "string", "minLength": 1}}
	maps.Copy(p, more)
	return map[string]any{"type": "array", "items": map[string]any{"type": "object", "properties": p, "required": slices.Sorted(maps.Keys(p)), "additionalProperties": false}}
}

// free are maps whose keys are the reader's own, or those of Kubernetes, beside the empty ones.
var free = []string{"resources", "nodeSelector", "monitoring", "dashboardLabels", "labels"}

// schemaOf describes the mapping n, which is the value at path.
func schemaOf(t *testing.T, path string, n *yaml.Node) map[string]any {
	properties := map[string]any{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		p := map[string]any{"description": description(t, at, key)}
		for k, v := range constraints[at] {
			p[k] = v
		}
		switch {
		case value.Kind == yaml.MappingNode && (len(value.Content) == 0 || slices.Contains(free, key.Value) && path != ""):
			p["type"] = "object"
		case value.Kind == yaml.MappingNode:
			for k, v := range schemaOf(t, at, value) {
				p[k] = v
			}
		case value.Kind == yaml.SequenceNode:
			if p["type"] = "array"; p["items"] == nil {
				p["items"] = map[string]any{"type": "string"}
			}
		default:
			p["type"] = map[string]string{"!!str": "string", "!!int": "integer", "!!bool": "boolean"}[value.Tag]
			var v any
			if err := value.Decode(&v); err != nil {
				t.Fatal(err)
			}
			p["default"] = v
		}
		properties[key.Value] = p
	}
	// helm hands its own "global" to every chart that another one holds.
	if path == "" {
		properties["global"] = map[string]any{"type": "object", "description": "Helm's own, for charts that hold this one; not read."}
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

// description is the comment above a key, without its signs.
func description(t *testing.T, path string, key *yaml.Node) string {
	t.Helper()
	block := key.HeadComment
	if i := strings.LastIndex(block, "\n\n"); i >= 0 {
		block = block[i+2:]
	}
	var words []string
	for line := range strings.Lines(block) {
		words = append(words, strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "#"))...)
	}
	if len(words) == 0 {
		t.Errorf("values.yaml: %s has no comment: say above it what it is for", path)
	}
	return strings.Join(words, " ")
}

// The schema is written from values.yaml, so that both say the same.
func TestSchemaIsThatOfTheValues(t *testing.T) {
	text, err := os.ReadFile("isthmus/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	schema := schemaOf(t, "", doc.Content[0])
	schema["$schema"] = "http://json-schema.org/draft-07/schema#"
	schema["title"] = "Values of the chart isthmus"
	for path := range constraints {
		at := schema
		for _, k := range strings.Split(path, ".") {
			p, _ := at["properties"].(map[string]any)
			if at, _ = p[k].(map[string]any); at == nil {
				t.Fatalf("constraints names %s, which is no value", path)
			}
		}
	}
	var want bytes.Buffer
	enc := json.NewEncoder(&want)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(schema); err != nil {
		t.Fatal(err)
	}
	const file = "isthmus/values.schema.json"
	if *update {
		if err := os.WriteFile(file, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := os.ReadFile(file); !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is not what values.yaml says: run go test ./helm -update", file)
	}
}
