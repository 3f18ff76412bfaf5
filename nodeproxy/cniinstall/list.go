package cniinstall

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/isthmus-mesh/isthmus/nodeproxy/cniplugin"
)

// list is a network configuration list of CNI, as text: what is not of interest here stays as it was written.
type list struct {
	text    []byte
	plugins []span // where each is in text
}

type span struct{ from, to int }

// errNoList is that of a configuration of a single plugin.
var errNoList = errors.New("it is no list of plugins")

// errUnused is that of what runtimes take for no configuration. CRI-O takes the next one then, and so do we; containerd
// (go-cni) takes none if it comes first, and the next one is right as soon as it is deleted.
var errUnused = errors.New("mend it, or delete it, as containerd starts no pods with it, and CRI-O takes the next one")

func parseList(text []byte) (*list, error) {
	var fields map[string]json.RawMessage
	var other *json.UnmarshalTypeError
	if err := json.Unmarshal(text, &fields); errors.As(err, &other) {
		return nil, fmt.Errorf("it is a JSON %s, and no object ({…}): %w", other.Value, errUnused)
	} else if err != nil {
		return nil, fmt.Errorf("it is no JSON: %w (%w)", errUnused, err)
	}
	raw, ok := fields["plugins"]
	if !ok {
		return nil, errNoList
	}
	var plugins []json.RawMessage
	if err := json.Unmarshal(raw, &plugins); err != nil {
		return nil, fmt.Errorf("plugins: is no list: %w: mend it, as in \"plugins\": [{\"type\": …}]", err)
	}
	l := &list{text: text}
	l.find()
	return l, nil
}

// fits has an error where no plugin can be put in.
func (l *list) fits() error {
	if len(l.plugins) == 0 {
		return errors.New("plugins: is empty: isthmus-cni comes behind a plugin that gives pods addresses")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(l.text, &fields); err != nil {
		return err
	}
	var version string
	if raw, ok := fields["cniVersion"]; ok {
		if err := json.Unmarshal(raw, &version); err != nil {
			return fmt.Errorf("cniVersion: %w: write one such as \"1.0.0\"", err)
		}
	}
	if slices.Contains([]string{"", "0.1.0", "0.2.0"}, version) {
		return fmt.Errorf("cniVersion %q knows no chains of plugins: use 0.3.1 or later", version)
	}
	return nil
}

// find finds the plugins in a text that is a list. Of two fields plugins the last one counts, as for runtimes.
func (l *list) find() {
	l.plugins = nil
	whole := json.NewDecoder(bytes.NewReader(l.text))
	for whole.Token(); whole.More(); {
		key, _ := whole.Token()
		var raw json.RawMessage
		if whole.Decode(&raw) != nil || key != "plugins" {
			continue
		}
		l.plugins = nil
		from := int(whole.InputOffset()) - len(raw)
		each := json.NewDecoder(bytes.NewReader(raw))
		for each.Token(); each.More(); {
			var plugin json.RawMessage
			if each.Decode(&plugin) != nil {
				return
			}
			to := from + int(each.InputOffset())
			l.plugins = append(l.plugins, span{to - len(plugin), to})
		}
	}
}

// splice puts something else in the place of a part of the text.
func (l *list) splice(from, to int, by ...[]byte) {
	l.text = slices.Concat(l.text[:from], bytes.Join(by, nil), l.text[to:])
	l.find()
}

// asList makes a list of the configuration of a single plugin.
func asList(text []byte) (*list, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	var plugin string
	if json.Unmarshal(fields["type"], &plugin) != nil || plugin == "" {
		return nil, fmt.Errorf("it has no type, as the configuration of a single plugin has: %w", errUnused)
	}
	out := map[string]any{}
	for _, k := range []string{"cniVersion", "name"} {
		if v, ok := fields[k]; ok {
			out[k] = v
			delete(fields, k)
		}
	}
	out["plugins"] = []any{fields}
	whole, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return nil, err
	}
	return parseList(append(whole, '\n'))
}

// ours are the places of the plugin's entry: one, where somebody has not copied it.
func (l *list) ours() (out []int) {
	for i, at := range l.plugins {
		var p struct{ Type string }
		if json.Unmarshal(l.text[at.from:at.to], &p) == nil && p.Type == cniplugin.Type {
			out = append(out, i)
		}
	}
	return out
}

// with puts the entry in, last if it is not there yet: whoever has come behind it stays there. First it cannot be: nobody
// has given the pod an address by then. It reports whether anything is different.
func (l *list) with(entry json.RawMessage) bool {
	changed := false
	for at := l.ours(); len(at) > 1 || len(at) == 1 && at[0] == 0 && len(l.plugins) > 1; at = l.ours() {
		extra := at[len(at)-1]
		if at[0] == 0 {
			extra = 0
		}
		l.remove(extra)
		changed = true
	}
	at := l.ours()
	if len(at) == 0 {
		last := l.plugins[len(l.plugins)-1]
		before := l.text[:last.from] // the space before it is that before the entry
		l.splice(last.to, last.to, []byte(","), before[len(bytes.TrimRight(before, " \t\r\n")):], entry)
		return true
	}
	was := l.plugins[at[0]]
	if sameJSON(l.text[was.from:was.to], entry) {
		return changed
	}
	l.splice(was.from, was.to, entry)
	return true
}

// without takes the entry out, and reports whether it was there.
func (l *list) without() bool {
	there := false
	for at := l.ours(); len(at) > 0; at = l.ours() {
		l.remove(at[len(at)-1])
		there = true
	}
	return there
}

// remove takes a plugin out, with the comma and the space that with has put before an entry.
func (l *list) remove(i int) {
	at := l.plugins[i]
	switch {
	case i > 0:
		at.from = l.plugins[i-1].to
	case len(l.plugins) > 1:
		at.to = l.plugins[1].from
	}
	l.splice(at.from, at.to)
}

// sameJSON reports whether both say the same, whatever the order of their fields. Numbers are as they are written.
func sameJSON(a, b []byte) bool {
	normal := func(x []byte) []byte {
		var v any
		d := json.NewDecoder(bytes.NewReader(x))
		d.UseNumber() // a float64 takes others for the same
		if d.Decode(&v) != nil {
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
