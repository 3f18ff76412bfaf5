package helm

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/controller"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// takes reports whether a schema takes a value, by the keywords that values.schema.json has.
func takes(t *testing.T, schema map[string]any, v any) bool {
	t.Helper()
	for keyword, x := range schema {
		s, isText := v.(string)
		f, isNumber := v.(float64)
		m, isObject := v.(map[string]any)
		l, isList := v.([]any)
		ok := true
		switch keyword {
		case "type":
			is := map[string]bool{"string": isText, "number": isNumber, "integer": isNumber && f == float64(int64(f)), "object": isObject, "array": isList, "boolean": v == true || v == false}
			ok = is[x.(string)]
		case "pattern":
			ok = !isText || regexp.MustCompile(x.(string)).MatchString(s)
		case "minLength":
			ok = !isText || len(s) >= int(x.(float64))
		case "maxLength":
			ok = !isText || len(s) <= int(x.(float64))
		case "minProperties":
			ok = !isObject || len(m) >= int(x.(float64))
		case "minimum":
			ok = !isNumber || f >= x.(float64)
		case "maximum":
			ok = !isNumber || f <= x.(float64)
		case "enum":
			ok = slices.Contains(x.([]any), v)
		case "const":
			ok = reflect.DeepEqual(x, v)
		case "anyOf":
			ok = slices.ContainsFunc(x.([]any), func(y any) bool { return takes(t, y.(map[string]any), v) })
		case "not":
			ok = !takes(t, x.(map[string]any), v)
		case "items":
			ok = !slices.ContainsFunc(l, func(y any) bool { return !takes(t, x.(map[string]any), y) })
		case "required":
			for _, k := range x.([]any) {
				ok = ok && (!isObject || m[k.(string)] != nil)
			}
		case "properties", "additionalProperties": // together
			known, _ := schema["properties"].(map[string]any)
			for k, y := range m {
				sub := known[k]
				if sub == nil {
					sub = schema["additionalProperties"]
				}
				if of, is := sub.(map[string]any); is {
					ok = ok && takes(t, of, y)
				}
				ok = ok && sub != false
			}
		case "$schema", "title", "description", "default":
		default:
			t.Fatalf("keyword %s is not known here", keyword)
		}
		if !ok {
			return false
		}
	}
	return true
}

// drawn is a value that was good, with a few letters changed.
func drawn(r *rand.Rand, good []string) string {
	const letters = "aZ09-._:/[] smh,%µ"
	s := []rune(good[r.IntN(len(good))])
	for range r.IntN(3) {
		at := r.IntN(len(s) + 1)
		switch c := []rune(letters)[r.IntN(len([]rune(letters)))]; {
		case r.IntN(2) == 0:
			s = slices.Insert(s, at, c)
		case at < len(s) && r.IntN(2) == 0:
			s[at] = c
		case at < len(s):
			s = slices.Delete(s, at, at+1)
		}
	}
	return string(s)
}

// put sets a value under a path, through lists by numbers of one digit.
func put(v any, to any, path ...string) any {
	if len(path) == 0 {
		return to
	}
	if path[0] == "0" {
		return []any{put(map[string]any{}, to, path[1:]...)}
	}
	m, _ := v.(map[string]any)
	out := maps.Clone(m)
	if out == nil {
		out = map[string]any{}
	}
	out[path[0]] = put(out[path[0]], to, path[1:]...)
	return out
}

// What values.schema.json takes, the programs take, and so do the rules of the API server for
// addresses: of what both know, drawn at random around good values.
func TestWhatTheSchemaTakesTheProgramsTake(t *testing.T) {
	schema := readSchema(t)
	dir, write, api := inContainer(t)
	configs := map[string]any{}
	for _, o := range rendered(t, "everything") {
		for key, text := range o.Data {
			var v any
			text = strings.ReplaceAll(strings.Replace(text, "inCluster: true", "kubeconfig: "+api, 1), "/var/lib/isthmus", dir)
			if o.Kind == "ConfigMap" && yaml.Unmarshal([]byte(text), &v) == nil {
				configs[key] = v
			}
		}
	}
	// load is whether a program takes its configuration with one value of its own.
	load := func(kind string, program func(path string) error) func(v any, path ...string) error {
		return func(v any, path ...string) error {
			text, err := yaml.Marshal(put(configs[kind], v, path...))
			if err != nil {
				t.Fatal(err)
			}
			return program(write(kind, string(text)))
		}
	}
	gw := load("gateway.yaml", func(p string) error { _, _, err := gateway.LoadConfig(p); return err })
	np := load("nodeproxy.yaml", func(p string) error { _, _, err := nodeproxy.LoadConfig(p); return err })
	co := load("controller.yaml", func(p string) error { _, _, err := controller.LoadConfig(p); return err })
	listen := map[string]any{"listen": "127.0.0.1:15080", "workload": "u", "to": "hello:80"}
	socks := map[string]any{"listen": "127.0.0.1:15080", "workload": "u"}
	with := func(m map[string]any, k string, v any) any { return []any{put(m, v, k)} }
	at := func(program func(any, ...string) error, path ...string) func(string) error {
		return func(s string) error { return program(s, path...) }
	}
	addresses := []string{"127.0.0.1:15080", "0.0.0.0:1", "[::]:65535", "[::1]:80", "[fe80::1]:8080", "10.255.0.9:65536"}
	prefix := func(s string) error {
		p, err := netip.ParsePrefix(s)
		if err == nil && p.Addr().Zone() != "" {
			err = fmt.Errorf("a zone")
		}
		return err
	}
	// A duration is checked as it is read; the relations between several are the programs' own.
	for _, x := range []struct {
		path  []string // of the values
		good  []string
		value func(s string) any
		taken func(s string) error
	}{
		{[]string{"network"}, []string{"west", "a", "eu-west-1"}, nil, func(s string) error {
			if s == "" { // the template asks for it
				return nil
			}
			return gw(s, "network")
		}},
		{[]string{"trustDomain"}, []string{"cluster.local", "west.local", "a_b"}, nil, at(gw, "trustDomain")},
		{[]string{"trustDomain"}, []string{"cluster.local", "west.local", "a_b"}, nil, at(np, "trustDomain")},
		{[]string{"controller", "config", "trustDomain"}, []string{"cluster.local"}, nil, at(co, "trustDomain")},
		{[]string{"gateway", "config", "timeouts", "drain"}, []string{"10s", "1h30m", "500ms", "1.5s", "0s", "-1s"}, nil, at(gw, "timeouts", "drain")},
		{[]string{"gateway", "config", "timeouts", "halfClosed"}, []string{"10s", "1h30m", "500ms", "0.0s", "10"}, nil, at(gw, "timeouts", "halfClosed")},
		{[]string{"nodeProxy", "config", "timeouts", "idle"}, []string{"10s", "1h30m", "500ms", "7µs"}, nil, at(np, "timeouts", "idle")},
		{[]string{"nodeProxy", "config", "socks"}, addresses, func(s string) any { return with(socks, "listen", s) }, func(s string) error { return np(with(socks, "listen", s), "socks") }},
		{[]string{"nodeProxy", "config", "socks"}, []string{"u", ""}, func(s string) any { return with(socks, "workload", s) }, func(s string) error { return np(with(socks, "workload", s), "socks") }},
		{[]string{"nodeProxy", "config", "outbound"}, addresses, func(s string) any { return with(listen, "listen", s) }, func(s string) error { return np(with(listen, "listen", s), "outbound") }},
		{[]string{"nodeProxy", "config", "outbound"}, []string{"hello.demo.svc.cluster.local:80", "10.0.0.1:1", "[::1]:65535"}, func(s string) any { return with(listen, "to", s) }, func(s string) error { return np(with(listen, "to", s), "outbound") }},
		{[]string{"networkPolicy", "nodeCIDRs"}, []string{"10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32", "::/0"}, func(s string) any { return []any{s} }, prefix},
		{[]string{"gateway", "service", "loadBalancerSourceRanges"}, []string{"10.0.0.0/8", "2001:db8::/32"}, func(s string) any { return []any{s} }, prefix},
		{[]string{"gateway", "service", "externalIPs"}, []string{"198.51.100.9", "2001:db8:0:0:1::1", "1:2:3:4:5:6:7:8"}, func(s string) any { return []any{s} }, func(s string) error {
			_, err := netip.ParseAddr(s)
			return err
		}},
	} {
		seed := rand.Uint64()
		r, taken, refused := rand.New(rand.NewPCG(seed, 1)), 0, 0
		for range 150 {
			s := drawn(r, x.good)
			var v any = s
			if x.value != nil {
				v = x.value(s)
			}
			if !takes(t, schema, put(map[string]any{}, v, x.path...)) {
				refused++
				continue
			}
			taken++
			if err := x.taken(s); err != nil {
				t.Fatalf("seed %d: %v: the schema takes %q: %v", seed, x.path, s, err)
			}
		}
		if taken < 10 || refused < 3 {
			t.Errorf("%v: %d are taken and %d refused, which says little", x.path, taken, refused)
		}
	}
}

func readSchema(t *testing.T) (schema map[string]any) {
	t.Helper()
	b, err := os.ReadFile("isthmus/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &schema); err != nil {
		t.Fatal(err)
	}
	return schema
}

// The schema takes the sets of values of testdata, and what values.yaml has.
func TestTheSchemaTakesGoodValues(t *testing.T) {
	schema := readSchema(t)
	files, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "isthmus/values.yaml") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := yaml.Unmarshal(text, &v); err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(v)
		if err == nil { // numbers as JSON has them
			err = json.Unmarshal(b, &v)
		}
		if err != nil || !takes(t, schema, v) {
			t.Errorf("%s is refused: %v", file, err)
		}
	}
}

// The schema takes every key of the programs, and none beside them: they do not start with one.
func TestTheSchemaKnowsTheKeysOfThePrograms(t *testing.T) {
	schema := readSchema(t)
	for values, config := range map[string]any{"gateway": gateway.DefaultConfig(), "nodeProxy": nodeproxy.DefaultConfig(), "controller": controller.DefaultConfig()} {
		for _, k := range strictyaml.Keys(config) {
			path := append([]string{values, "config"}, strings.Split(k.Name, ".")...)
			if strings.ContainsAny(k.Name, "[*") { // the rules of items ask for several keys
				continue
			}
			at := schema
			for _, name := range path {
				at, _ = at["properties"].(map[string]any)[name].(map[string]any)
			}
			if at == nil {
				t.Errorf("%s: the schema does not have it", k.Name)
			}
			misspelt := slices.Clone(path)
			misspelt[len(path)-1] += "x"
			if takes(t, schema, put(map[string]any{}, "5s", misspelt...)) {
				t.Errorf("%s is taken", strings.Join(misspelt, "."))
			}
		}
	}
	items := []any{map[string]any{"workload": "u", "path": "/run/netns/a", "resolveConf": "/etc/resolv.conf"}}
	if takes(t, schema, put(map[string]any{}, items, "nodeProxy", "config", "capture", "namespaces")) {
		t.Error("an unknown key of an item is taken")
	}
}
