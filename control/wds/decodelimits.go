package wds

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Limits of one resource. Discovery has narrower ones for names.
const (
	MaxBody   = 1 << 20 // bytes
	maxListed = 4096    // items of a list
	maxText   = 2048    // bytes of a text, but for policies and extensions
)

// bounded checks the sizes of all lists and texts of m.
func bounded(m proto.Message) error {
	if e := boundedIn(m.ProtoReflect(), ""); e != nil {
		return e
	}
	return nil
}

func boundedIn(m protoreflect.Message, path string) (wrong *Error) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + string(f.Name())
		value := func(v protoreflect.Value) bool {
			if s, text := v.Interface().(string); text && len(s) > maxText && f.Name() != "object" {
				wrong = invalid(at, s, fmt.Sprintf("%d bytes: at most %d", len(s), maxText))
			} else if m, is := v.Interface().(protoreflect.Message); is {
				wrong = boundedIn(m, at+".")
			}
			return wrong == nil
		}
		n, each := 1, func() { value(v) }
		switch {
		case f.IsMap():
			n, each = v.Map().Len(), func() {
				v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool { return value(k.Value()) && value(v) })
			}
		case f.IsList():
			n, each = v.List().Len(), func() {
				for i := 0; i < v.List().Len() && value(v.List().Get(i)); i++ {
				}
			}
		}
		if n > maxListed {
			wrong = invalid(at, n, fmt.Sprintf("too many items: at most %d", maxListed))
		} else {
			each()
		}
		return wrong == nil
	})
	return wrong
}
