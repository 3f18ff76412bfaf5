package cniinstall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/isthmus-mesh/isthmus/nodeproxy/cniplugin"
)

// list is a network configuration list of CNI: what is not of interest here stays as it is.
type list struct {
	fields  map[string]json.RawMessage
	plugins []json.RawMessage
}

// errNoList is that of a configuration of a single plugin.
var errNoList = errors.New("it is no list of plugins")

// errBroken is that of what is no JSON. CRI-O takes the next configuration then, and so do we; containerd (go-cni) takes
// none if it comes first, and the next one is right as soon as it is deleted.
var errBroken = errors.New("it is no JSON: mend it, or delete it, as containerd starts no pods with it, and CRI-O takes the next one")

func parseList(text []byte) (*list, error) {
	l := &list{}
	if err := json.Unmarshal(text, &l.fields); err != nil {
		return nil, fmt.Errorf("%w (%w)", errBroken, err)
	}
	raw, ok := l.fields["plugins"]
	if !ok {
		return nil, errNoList
	}
	if err := json.Unmarshal(raw, &l.plugins); err != nil {
		return nil, fmt.Errorf("plugins: is no list: %w: mend it, as in \"plugins\": [{\"type\": …}]", err)
	}
	if len(l.plugins) == 0 {
		return nil, errors.New("plugins: is empty: isthmus-cni comes behind a plugin that gives pods addresses")
	}
	var version string
	if raw, ok := l.fields["cniVersion"]; ok {
		if err := json.Unmarshal(raw, &version); err != nil {
			return nil, fmt.Errorf("cniVersion: %w: write one such as \"1.0.0\"", err)
		}
	}
	if slices.Contains([]string{"", "0.1.0", "0.2.0"}, version) {
		return nil, fmt.Errorf("cniVersion %q knows no chains of plugins: use 0.3.1 or later", version)
	}
	return l, nil
}

// asList makes a list of the configuration of a single plugin.
func asList(text []byte) (*list, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	out := map[string]json.RawMessage{}
	for _, k := range []string{"cniVersion", "name"} {
		if v, ok := fields[k]; ok {
			out[k] = v
			delete(fields, k)
		}
	}
	plugins, err := json.Marshal([]any{fields})
	if err != nil {
		return nil, err
	}
	out["plugins"] = plugins
	whole, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	return parseList(whole)
}

// at returns the place of the plugin's entry; -1 if it has none.
func (l *list) at() int {
	return slices.IndexFunc(l.plugins, func(raw json.RawMessage) bool {
		var p struct{ Type string }
		return json.Unmarshal(raw, &p) == nil && p.Type == cniplugin.Type
	})
}

// with puts the entry in, last if it is not there yet: whoever has come behind it stays there. First it cannot be: nobody
// has given the pod an address by then. It reports whether anything is different.
func (l *list) with(entry json.RawMessage) bool {
	moved := false
	for l.at() == 0 && len(l.plugins) > 1 {
		l.plugins, moved = l.plugins[1:], true
	}
	i := l.at()
	switch {
	case i < 0:
		l.plugins = append(l.plugins, entry)
	case sameJSON(l.plugins[i], entry):
		return moved
	default:
		l.plugins[i] = entry
	}
	return true
}

// without takes the entry out, and reports whether it was there.
func (l *list) without() bool {
	i := l.at()
	if i < 0 {
		return false
	}
	l.plugins = slices.Delete(l.plugins, i, i+1)
	return true
}

// text is the list as a file.
func (l *list) text() ([]byte, error) {
	raw, err := json.Marshal(l.plugins)
	if err != nil {
		return nil, err
	}
	l.fields["plugins"] = raw
	b, err := json.MarshalIndent(l.fields, "", "  ")
	return append(b, '\n'), err
}

func sameJSON(a, b []byte) bool {
	normal := func(x []byte) []byte {
		var v any
		if json.Unmarshal(x, &v) != nil {
			return x
		}
		out, err := json.Marshal(v)
		if err != nil {
			return x
		}
		return out
	}
	return bytes.Equal(normal(a), normal(b))
}
