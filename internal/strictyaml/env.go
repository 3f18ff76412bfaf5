package strictyaml

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// ApplyEnv overrides every field of the struct that out points to whose tag
// env:"NAME" names a variable that lookup (os.LookupEnv in a main) knows. A
// variable that is set but empty counts as not set. A list of scalars is
// written with commas. Items of lists are not reached. The error joins one
// error per variable that cannot be read, each with name, value and remedy.
func ApplyEnv(out any, lookup func(string) (string, bool)) error {
	v := reflect.ValueOf(out)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("apply environment: want a pointer to a struct, got %T", out)
	}
	return errors.Join(applyEnv(v.Elem(), lookup)...)
}

func applyEnv(v reflect.Value, lookup func(string) (string, bool)) (errs []error) {
	for _, f := range fieldsOf(v.Type()).list {
		fv := v.FieldByIndex(f.index)
		if name := f.tag.Get("env"); name != "" {
			if text, ok := lookup(name); ok && text != "" {
				if err := setText(fv, text); err != nil {
					errs = append(errs, fmt.Errorf("environment variable %s: %w", name, err))
				}
			}
		}
		if fv.Kind() == reflect.Pointer && !fv.IsNil() {
			fv = fv.Elem()
		}
		if fv.Kind() == reflect.Struct && !isScalar(fv.Type()) {
			errs = append(errs, applyEnv(fv, lookup)...)
		}
	}
	return errs
}

func setText(v reflect.Value, text string) error {
	switch t := v.Type(); {
	case t.Kind() == reflect.Pointer:
		p := reflect.New(t.Elem())
		if err := setText(p.Elem(), text); err != nil {
			return err
		}
		v.Set(p)
	case isScalar(t):
		return setScalar(v, text)
	case t.Kind() == reflect.Slice && isScalar(t.Elem()):
		words := strings.Split(text, ",")
		items := reflect.MakeSlice(t, len(words), len(words))
		for i, w := range words {
			if err := setScalar(items.Index(i), strings.TrimSpace(w)); err != nil {
				return err
			}
		}
		v.Set(items)
	default:
		return fmt.Errorf("a field of type %s cannot be set from the environment", t)
	}
	return nil
}
