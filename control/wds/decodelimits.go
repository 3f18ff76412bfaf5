package wds

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Limits of one resource. A larger one is an error.
const (
	MaxBody   = 1 << 20 // bytes
	maxListed = 4096    // items of a list
	maxText   = 253     // bytes of a text, but for longTexts
	maxLong   = 64 << 10
)

// longTexts are not names: SPIFFE IDs and policies.
var longTexts = map[protoreflect.Name]int{"subject_alt_names": 2048, "identities": 2048, "exact": 2048, "prefix": 2048, "suffix": 2048, "object": maxLong, "authorization_policies": 1024, "value": MaxBody, "type_url": 1024, "uid": 1024, "services": 1024}

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
		switch {
		case f.IsMap():
			if wrong = boundedList(at, v.Map().Len()); wrong == nil {
				v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
					if wrong = boundedText(f, at, k.String()); wrong == nil {
						wrong = boundedIn(v.Message(), at+"["+strconv.Quote(k.String())+"].")
					}
					return wrong == nil
				})
			}
		case f.IsList():
			wrong = boundedList(at, v.List().Len())
			for i := 0; wrong == nil && i < v.List().Len(); i++ {
				wrong = boundedValue(f, fmt.Sprintf("%s[%d]", at, i), v.List().Get(i))
			}
		default:
			wrong = boundedValue(f, at, v)
		}
		return wrong == nil
	})
	return wrong
}

func boundedValue(f protoreflect.FieldDescriptor, at string, v protoreflect.Value) *Error {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return boundedIn(v.Message(), at+".")
	case protoreflect.StringKind:
		return boundedText(f, at, v.String())
	case protoreflect.BytesKind:
		return boundedText(f, at, string(v.Bytes()))
	}
	return nil
}

func boundedList(at string, n int) *Error {
	if n > maxListed {
		return invalid(at, n, fmt.Sprintf("too many items: at most %d", maxListed))
	}
	return nil
}

func boundedText(f protoreflect.FieldDescriptor, at, s string) *Error {
	limit := maxText
	if n, long := longTexts[f.Name()]; long {
		limit = n
	}
	if len(s) > limit {
		return invalid(at, s[:maxText], fmt.Sprintf("%d bytes: at most %d", len(s), limit))
	}
	return nil
}
