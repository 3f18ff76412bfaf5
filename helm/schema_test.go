package helm

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// constraints are what values.yaml does not say of a value by its type.
var constraints = map[string]map[string]any{
	"network":                               {"pattern": "^$|^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"},
	"trustDomain":                           {"minLength": 1},
	"image.registry":                        {"minLength": 1},
	"image.pullPolicy":                      {"enum": []string{"Always", "IfNotPresent", "Never"}},
	"objects.networkKey":                    {"minLength": 1},
	"objects.ca":                            {"minLength": 1},
	"objects.root":                          {"minLength": 1},
	"objects.networks":                      {"minLength": 1},
	"log.level":                             {"enum": []string{"debug", "info", "warn", "error"}},
	"gateway.replicas":                      {"minimum": 1},
	"gateway.lameDuckSeconds":               {"minimum": 0},
	"gateway.drainSeconds":                  {"minimum": 1},
	"gateway.minAvailable":                  {"minimum": 1},
	"gateway.service.type":                  {"enum": []string{"LoadBalancer", "NodePort", "ClusterIP"}},
	"gateway.service.externalTrafficPolicy": {"enum": []string{"Local", "Cluster"}},
	"gateway.service.nodePort":              {"minimum": 0, "maximum": 65535},
	"gateway.hostPort":                      {"minimum": 0, "maximum": 65535},
	"gateway.service.ipFamilyPolicy":        {"enum": []string{"SingleStack", "PreferDualStack", "RequireDualStack"}},
	"controller.replicas":                   {"minimum": 1},
	"nodeProxy.drainSeconds":                {"minimum": 1},
	"nodeProxy.stateDir":                    {"pattern": "^/"},
	"monitoring.interval":                   {"pattern": "^[0-9]+(ms|s|m|h)$"},
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
		case value.Kind == yaml.SequenceNode && key.Value == "tolerations":
			p["type"], p["items"] = "array", map[string]any{"type": "object"}
		case value.Kind == yaml.SequenceNode:
			p["type"], p["items"] = "array", map[string]any{"type": "string"}
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
