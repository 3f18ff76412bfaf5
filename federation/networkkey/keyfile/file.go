package keyfile

import (
	"fmt"
	"strconv"

	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// ParseFile reads b, the file of known networks that errors call name, for who changes it.
func ParseFile(name string, b []byte) (File, error) {
	var f File
	if _, _, err := parse(name, b); err != nil {
		return f, err
	}
	doc, err := strictyaml.Parse(name, b)
	if err != nil {
		return f, err
	}
	return f, doc.Decode(&f)
}

// Format returns the file that ParseFile reads, its networks in their order.
func (f File) Format() []byte {
	if len(f.Networks) == 0 {
		return []byte("networks: []\n")
	}
	b := []byte("networks:\n")
	for _, n := range f.Networks {
		b = fmt.Appendf(b, "  - name: %s\n    keys:\n", strconv.Quote(n.Name))
		for _, k := range n.Keys {
			b = fmt.Appendf(b, "      - %s\n", k)
		}
		b = n.Link.append(b)
	}
	return b
}
