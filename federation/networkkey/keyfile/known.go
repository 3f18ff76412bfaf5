package keyfile

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// file is the form of the file of known networks.
type file struct {
	Networks []network `yaml:"networks"`
}

type network struct {
	Name string   `yaml:"name"`
	Keys []string `yaml:"keys"`
}

// ReadKnown reads the file of known networks at path. Every mistake is a line
// that names the file and the field.
func ReadKnown(path string) (networkkey.Known, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return ParseKnown(path, b)
}

// ParseKnown is ReadKnown of b; errors call the file name.
func ParseKnown(name string, b []byte) (networkkey.Known, error) {
	doc, err := strictyaml.Parse(name, b)
	if err != nil {
		return nil, err
	}
	var f file
	if err := doc.Decode(&f); err != nil {
		return nil, err
	}
	var errs []error
	known := networkkey.Known{}
	for i, n := range f.Networks {
		if _, twice := known[n.Name]; twice {
			errs = append(errs, fmt.Errorf("%s: networks[%d].name: %q is listed already: put all of its keys in one place", doc.Pos("networks", i, "name"), i, n.Name))
			continue
		}
		known[n.Name] = nil
		for j, s := range n.Keys {
			p, err := networkkey.ParsePublic(s)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: networks[%d].keys[%d]: %w", doc.Pos("networks", i, "keys", j), i, j, err))
			}
			known[n.Name] = append(known[n.Name], p)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if err := known.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return known, nil
}

// FormatKnown returns the file that ParseKnown reads.
func FormatKnown(k networkkey.Known) []byte {
	var b bytes.Buffer
	b.WriteString("networks:\n")
	for _, name := range slices.Sorted(maps.Keys(k)) {
		fmt.Fprintf(&b, "  - name: %s\n    keys:\n", strconv.Quote(name))
		for _, p := range k[name] {
			fmt.Fprintf(&b, "      - %s\n", p)
		}
	}
	return b.Bytes()
}
