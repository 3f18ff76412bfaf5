package strictyaml

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// reader walks nodes and values side by side and collects mistakes.
type reader struct {
	file  string
	errs  []error
	more  int // mistakes beyond maxErrors
	known map[reflect.Type]fieldSet
	// standard is the default of the key that is read, as its tag has it.
	standard string
}

func (r *reader) err() error {
	if r.more > 0 {
		r.errs = append(r.errs, fmt.Errorf("%s: and %d more", r.file, r.more))
	}
	return errors.Join(r.errs...)
}

func (r *reader) fail(n *yaml.Node, field, format string, args ...any) {
	if len(r.errs) >= maxErrors {
		r.more++
		return
	}
	r.errs = append(r.errs, &Error{File: r.file, Line: max(n.Line, 1), Field: field, Message: fmt.Sprintf(format, args...)})
}

// value sets v from n. An empty value leaves v as it was.
func (r *reader) value(n *yaml.Node, v reflect.Value, field string) {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		r.fail(n, field, "anchors and aliases (& and *) are not supported: write the value out")
		return
	}
	if isNull(n) {
		return
	}
	if v.Kind() == reflect.Pointer {
		p := reflect.New(v.Type().Elem())
		if !v.IsNil() {
			p.Elem().Set(v.Elem())
		}
		r.value(n, p.Elem(), field)
		v.Set(p)
		return
	}
	if u, ok := v.Addr().Interface().(yaml.Unmarshaler); ok {
		r.custom(n, u, field)
		return
	}
	if isScalar(v.Type()) {
		r.scalar(n, v, field)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		r.object(n, v, field)
	case reflect.Slice:
		r.list(n, v, field)
	case reflect.Map:
		r.table(n, v, field)
	case reflect.Interface:
		r.anything(n, v, field)
	default:
		r.fail(n, field, "cannot be read from YAML: its Go type is %s", v.Type())
	}
}

func (r *reader) scalar(n *yaml.Node, v reflect.Value, field string) {
	if n.Kind != yaml.ScalarNode {
		r.fail(n, field, "is %s: want %s", kindOf(n), want(v.Type()))
		return
	}
	switch n.ShortTag() {
	case "!!str", "!!int", "!!float", "!!bool", "!!timestamp":
	default:
		r.fail(n, field, "%s has the tag %s: remove the tag", quote(n.Value), n.Tag)
		return
	}
	if err := setScalar(v, n.Value); err != nil {
		text := err.Error()
		if r.standard != "" { // a better example of an address than that of its type
			text = strings.Replace(text, "such as 127.0.0.1:15008", "such as "+r.standard, 1)
		}
		r.fail(n, field, "%s", text)
	}
}

func (r *reader) object(n *yaml.Node, v reflect.Value, field string) {
	if n.Kind != yaml.MappingNode {
		r.fail(n, field, "is %s: want keys and values", kindOf(n))
		return
	}
	set := r.fields(v.Type())
	r.pairs(n, field, func(key, value *yaml.Node) {
		f, ok := set.byName[key.Value]
		if !ok {
			r.unknown(n, key, field, set.names)
			return
		}
		r.standard = f.tag.Get("default")
		r.value(value, v.FieldByIndex(f.index), join(field, key.Value))
	})
}

// unknown notes a key of group n that nothing reads.
func (r *reader) unknown(n, key *yaml.Node, field string, known []string) {
	before := len(r.errs)
	r.fail(key, "", "unknown key %s: %s", quote(key.Value), suggest(key.Value, known))
	meant := Nearest(key.Value, known)
	if _, there := child(n, meant); len(r.errs) > before && meant != "" && there == nil {
		r.errs[before].(*Error).meant = join(field, meant)
	}
}

// pairs calls each for every key of a mapping that is plain text and new.
func (r *reader) pairs(n *yaml.Node, field string, each func(key, value *yaml.Node)) {
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch first, twice := seen[key.Value]; {
		case key.Kind != yaml.ScalarNode || key.Anchor != "" || key.ShortTag() == "!!merge":
			r.fail(key, field, "a key here is %s: write a plain word", kindOf(key))
		case twice:
			r.fail(key, field, "key %s is given twice, first on line %d: remove one", quote(key.Value), first)
		default:
			seen[key.Value] = key.Line
			each(key, value)
		}
	}
}

func (r *reader) list(n *yaml.Node, v reflect.Value, field string) {
	if n.Kind != yaml.SequenceNode {
		r.fail(n, field, "is %s: want a list (one \"- \" per item)", kindOf(n))
		return
	}
	items := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		at := field + "[" + strconv.Itoa(i) + "]"
		if isNull(item) {
			r.fail(item, at, "is empty: give it a value or remove the item")
			continue
		}
		r.value(item, items.Index(i), at)
	}
	v.Set(items)
}

func (r *reader) table(n *yaml.Node, v reflect.Value, field string) {
	if n.Kind != yaml.MappingNode {
		r.fail(n, field, "is %s: want keys and values", kindOf(n))
		return
	}
	if v.Type().Key().Kind() != reflect.String {
		r.fail(n, field, "cannot be read from YAML: its Go type is %s", v.Type())
		return
	}
	m := reflect.MakeMapWithSize(v.Type(), len(n.Content)/2)
	r.pairs(n, field, func(key, value *yaml.Node) {
		item := reflect.New(v.Type().Elem()).Elem()
		r.value(value, item, join(field, key.Value))
		m.SetMapIndex(reflect.ValueOf(key.Value).Convert(v.Type().Key()), item)
	})
	v.Set(m)
}

// anything fills an interface with plain maps, lists and scalars.
func (r *reader) anything(n *yaml.Node, v reflect.Value, field string) {
	var x any
	if hasAlias(n) {
		r.fail(n, field, "anchors and aliases (& and *) are not supported: write the value out")
	} else if err := n.Decode(&x); err != nil {
		r.fail(n, field, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
	} else if x != nil && reflect.TypeOf(x).AssignableTo(v.Type()) {
		v.Set(reflect.ValueOf(x))
	} else {
		r.fail(n, field, "cannot be read from YAML: its Go type is %s", v.Type())
	}
}

func hasAlias(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return true
	}
	for _, c := range n.Content {
		if hasAlias(c) {
			return true
		}
	}
	return false
}

func (r *reader) custom(n *yaml.Node, u yaml.Unmarshaler, field string) {
	if err := u.UnmarshalYAML(n); err != nil {
		r.fail(n, field, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
}

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a group of keys"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	return quote(n.Value)
}

func join(field, key string) string {
	if field == "" {
		return key
	}
	return field + "." + key
}
