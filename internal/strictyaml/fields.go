package strictyaml

import (
	"reflect"
	"strings"
)

// field is one key of a struct.
type field struct {
	name  string
	index []int
	tag   reflect.StructTag
	typ   reflect.Type
}

type fieldSet struct {
	names  []string // in the order of the struct
	list   []field
	byName map[string]field
}

func (r *reader) fields(t reflect.Type) fieldSet {
	if s, ok := r.known[t]; ok {
		return s
	}
	s := fieldsOf(t)
	if r.known == nil {
		r.known = map[reflect.Type]fieldSet{}
	}
	r.known[t] = s
	return s
}

// fieldsOf lists the keys of struct type t, those of inlined structs included.
func fieldsOf(t reflect.Type) fieldSet {
	s := fieldSet{byName: map[string]field{}}
	s.add(t, nil)
	return s
}

func (s *fieldSet) add(t reflect.Type, at []int) {
	for i := range t.NumField() {
		f := t.Field(i)
		index := append(append([]int(nil), at...), i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		if strings.Contains(options, "inline") && f.Type.Kind() == reflect.Struct {
			s.add(f.Type, index)
			continue
		}
		if name == "" {
			name = strings.ToLower(f.Name)
		}
		if _, twice := s.byName[name]; twice {
			continue // the outer struct's key wins, as in Go
		}
		one := field{name: name, index: index, tag: f.Tag, typ: f.Type}
		s.names = append(s.names, name)
		s.list = append(s.list, one)
		s.byName[name] = one
	}
}
