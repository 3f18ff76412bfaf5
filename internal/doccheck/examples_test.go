package doccheck

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// TestExamplesAreReadByWhatTheyAreFor reads every YAML file under examples
// with the reader of its kind: drills by folder, mesh*.yaml and gateway*.yaml by
// name, and every other file as a node proxy's.
func TestExamplesAreReadByWhatTheyAreFor(t *testing.T) {
	files, err := filepath.Glob("../../examples/*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d examples (%v)", len(files), err)
	}
	for _, path := range files {
		t.Run(strings.TrimPrefix(filepath.ToSlash(path), "../../examples/"), func(t *testing.T) {
			if err := readExample(path); err != nil {
				t.Error(err)
			}
		})
	}
}

func readExample(path string) error {
	name := filepath.Base(path)
	if filepath.Base(filepath.Dir(path)) == "drills" {
		_, err := scenario.Load(path)
		return err
	}
	if strings.HasPrefix(name, "mesh") {
		_, err := file.Load(path)
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if strings.HasPrefix(name, "gateway") {
		c := gateway.DefaultConfig()
		if err := strictyaml.Decode(path, data, &c); err != nil {
			return err
		}
		_, err := c.Validate()
		return err
	}
	c := nodeproxy.DefaultConfig()
	if err := strictyaml.Decode(path, data, &c); err != nil {
		return err
	}
	_, err = c.Validate()
	return err
}
