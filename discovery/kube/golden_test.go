package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/isthmus-mesh/isthmus/discovery"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

// fixture reads the objects of a YAML file, trimmed as a Source has them.
func fixture(t testing.TB, path string) (events []Event) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		var raw json.RawMessage
		if err := d.Decode(&raw); errors.Is(err, io.EOF) {
			return events
		} else if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		var kind metav1.TypeMeta
		if err := json.Unmarshal(raw, &kind); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		e, err := decode(kind.Kind, raw)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		events = append(events, e)
	}
}

// decode returns the object of a kind as an event.
func decode(kind string, raw []byte) (Event, error) {
	var o interface{ metav1.Object }
	e := Event{}
	switch kind {
	case "Namespace":
		e.Kind, o = Namespaces, &corev1.Namespace{}
	case "Node":
		e.Kind, o = Nodes, &corev1.Node{}
	case "Service":
		e.Kind, o = Services, &corev1.Service{}
	case "EndpointSlice":
		e.Kind, o = EndpointSlices, &discoveryv1.EndpointSlice{}
	case "Pod":
		e.Kind, o = Pods, &corev1.Pod{}
	case "ServiceExport":
		e.Kind, o = ServiceExports, &metav1.PartialObjectMetadata{}
	default:
		return e, fmt.Errorf("nobody reads a %s", kind)
	}
	if err := json.Unmarshal(raw, o); err != nil {
		return e, err
	}
	e.Namespace, e.Name = o.GetNamespace(), o.GetName()
	var err error
	e.Object, err = trim(o)
	if p, is := e.Object.(*keptPod); is {
		e.Object = p.object()
	}
	return e, err
}

// said is what a Cluster has said, the newest of each key.
type said map[discovery.Key]discovery.Change

func (s said) take(changes []discovery.Change) {
	for _, c := range changes {
		if delete(s, c.Key); c.Record != nil || len(c.Faults) > 0 {
			s[c.Key] = c
		}
	}
}

// String has a line for each record and fault, in order.
func (s said) String() string {
	var lines []string
	for k, c := range s {
		if c.Record != nil {
			lines = append(lines, k.String()+" "+plain(c.Record))
		}
		for _, f := range c.Faults {
			what := "field"
			if f.Out {
				what = "out"
			}
			lines = append(lines, fmt.Sprintf("%s PROBLEM (%s, %s) %s", k, f.Cause, what, f.Error()))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// plain writes v without what is zero in it.
func plain(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	var tree any
	json.Unmarshal(data, &tree)
	data, _ = json.Marshal(prune(tree))
	return string(data)
}

func prune(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if v[k] = prune(x); v[k] == nil {
				delete(v, k)
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		for i := range v {
			v[i] = prune(v[i])
		}
		if len(v) == 0 {
			return nil
		}
	case string:
		if v == "" {
			return nil
		}
	case float64:
		if v == 0 {
			return nil
		}
	case bool:
		if !v {
			return nil
		}
	}
	return v
}

func TestObjectsBecomeTheseRecordsAndProblems(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d fixtures, %v", len(files), err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".yaml"), func(t *testing.T) {
			got := said{}
			got.take(NewCluster("west", "istio-system").Apply(fixture(t, f)...))
			golden := strings.TrimSuffix(f, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != string(want) {
				t.Errorf("got\n%swant\n%sif it is meant: go test ./discovery/kube -update", got, want)
			}
		})
	}
}

// What a Builder makes of it has no further problem, but for networks that nobody lists.
func TestRecordsOfTheFixturesAreWholeForABuilder(t *testing.T) {
	for _, f := range []string{"testdata/istio-global.yaml", "testdata/solo-scope.yaml", "testdata/service-export.yaml"} {
		b := discovery.NewBuilder(0)
		b.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "west"}, Record: discovery.Network{Name: "west"}})
		changes := NewCluster("west", "istio-system").Apply(fixture(t, f)...)
		faults := 0
		for _, c := range changes {
			faults += len(c.Faults)
		}
		b.Apply(changes...)
		if _, _, _ = b.Commit(); len(b.Problems()) != faults {
			t.Errorf("%s: %d faults, and these problems: %v", f, faults, b.Problems())
		}
	}
}
