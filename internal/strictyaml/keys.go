package strictyaml

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
)

// Key is one thing that can be set in a file.
type Key struct {
	Name    string // dotted; "[]" stands for an item of a list, "*" for a key of a map
	Type    string // Go type
	Doc     string // from doc:"…"
	Default string // from default:"…"
	Env     string // from env:"…"
	Value   string // what out holds; "" for the zero value, lists and maps
}

// Keys lists every key of the config struct out (or that out points to), in
// the order of the struct. A group of keys is not itself a key; a list or map
// of groups is, followed by the keys of its items.
func Keys(out any) []Key {
	v := reflect.ValueOf(out)
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return nil
	}
	return keysOf(v, "", nil)
}

func keysOf(v reflect.Value, prefix string, keys []Key) []Key {
	for _, f := range fieldsOf(v.Type()).list {
		t, name := f.typ, join(prefix, f.name)
		fv := v.FieldByIndex(f.index)
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
			if fv.IsNil() {
				fv = reflect.Zero(t)
			} else {
				fv = fv.Elem()
			}
		}
		if t.Kind() == reflect.Struct && !isScalar(t) {
			keys = keysOf(fv, name, keys)
			continue
		}
		keys = append(keys, Key{
			Name: name, Type: t.String(), Value: show(fv),
			Doc: f.tag.Get("doc"), Default: f.tag.Get("default"), Env: f.tag.Get("env"),
		})
		if item, suffix := itemOf(t); item != nil {
			keys = keysOf(reflect.Zero(item), name+suffix, keys)
		}
	}
	return keys
}

// itemOf returns the struct that t is a list or map of, or nil.
func itemOf(t reflect.Type) (item reflect.Type, suffix string) {
	switch t.Kind() {
	case reflect.Slice:
		item, suffix = t.Elem(), "[]"
	case reflect.Map:
		item, suffix = t.Elem(), ".*"
	default:
		return nil, ""
	}
	for item.Kind() == reflect.Pointer {
		item = item.Elem()
	}
	if item.Kind() != reflect.Struct || isScalar(item) {
		return nil, ""
	}
	return item, suffix
}

// show renders a scalar the way it would be written in a file.
func show(v reflect.Value) string {
	if !isScalar(v.Type()) || v.IsZero() {
		return ""
	}
	x := v.Interface()
	if m, ok := x.(encoding.TextMarshaler); ok {
		if b, err := m.MarshalText(); err == nil {
			return string(b)
		}
	}
	if v.CanFloat() {
		return strconv.FormatFloat(v.Float(), 'g', -1, v.Type().Bits())
	}
	return fmt.Sprint(x)
}

// Changed lists the keys in which a and b, config structs of one type, differ,
// in the order of the struct; for a list or a map, the key of the whole.
func Changed(a, b any) []string {
	return changed(reflect.ValueOf(a), reflect.ValueOf(b), "", nil)
}

func changed(a, b reflect.Value, prefix string, keys []string) []string {
	for a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil() {
		a, b = a.Elem(), b.Elem()
	}
	if a.Kind() != reflect.Struct || isScalar(a.Type()) {
		if !reflect.DeepEqual(a.Interface(), b.Interface()) {
			keys = append(keys, prefix)
		}
		return keys
	}
	for _, f := range fieldsOf(a.Type()).list {
		keys = changed(a.FieldByIndex(f.index), b.FieldByIndex(f.index), join(prefix, f.name), keys)
	}
	return keys
}
