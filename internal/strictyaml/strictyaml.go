package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxErrors is how many mistakes of one file are reported; the rest are
// counted.
const maxErrors = 20

// Error is one mistake in one file.
type Error struct {
	File    string
	Line    int    // from 1
	Field   string // dotted, such as workloads[3].addresses[0]; may be empty
	Message string // with the value and the remedy
	meant   string // of an unknown key: the field that it was most likely meant to be, if that is not there
}

func (e *Error) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message)
	}
	return fmt.Sprintf("%s:%d: %s: %s", e.File, e.Line, e.Field, e.Message)
}

// Decode reads the one document in data into the struct that out points to.
// name is what errors call the file. The error joins one *Error per mistake;
// out is then half filled and must not be used.
func Decode(name string, data []byte, out any) error {
	d, err := Parse(name, data)
	if err != nil {
		return err
	}
	return d.Decode(out)
}

// Doc is one parsed document that remembers where each field stands. It is
// immutable and safe for concurrent use.
type Doc struct {
	name string
	root *yaml.Node
}

// Parse checks that data is exactly one document that is not empty. It keeps
// no reference to data.
func Parse(name string, data []byte) (d *Doc, err error) {
	defer func() {
		if p := recover(); p != nil { // a bug of the YAML library, not of the file's reader
			d, err = nil, &Error{File: name, Line: 1, Message: fmt.Sprintf("is not readable as YAML: %v", p)}
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, emptyError(name)
	} else if err != nil {
		return nil, syntaxError(name, err)
	}
	if len(doc.Content) == 0 || isNull(doc.Content[0]) {
		return nil, emptyError(name)
	}
	if err := dec.Decode(&second); err == nil {
		return nil, &Error{File: name, Line: max(second.Line, 1), Message: `a second document begins here: remove the "---" or make it a file of its own`}
	} else if !errors.Is(err, io.EOF) {
		return nil, syntaxError(name, err)
	}
	return &Doc{name: name, root: doc.Content[0]}, nil
}

// Name returns what Parse was given.
func (d *Doc) Name() string { return d.name }

// Decode fills the struct that out points to; see the function [Decode].
func (d *Doc) Decode(out any) error {
	v := reflect.ValueOf(out)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("decode %s: want a pointer to a struct, got %T", d.name, out)
	}
	r := reader{file: d.name}
	r.value(d.root, v.Elem(), "")
	return r.err()
}

// Pos returns "file.yaml:12" for a path of keys (string) and list indices
// (int). Where the path leads beyond what the file says, it is the position of
// the last part that is there.
func (d *Doc) Pos(path ...any) string { return d.name + ":" + strconv.Itoa(d.Line(path...)) }

// Line is the line of what Pos says.
func (d *Doc) Line(path ...any) int {
	line, _ := d.find(path)
	return line
}

// Has reports whether the file gives a value for path.
func (d *Doc) Has(path ...any) bool {
	_, whole := d.find(path)
	return whole
}

// find follows path as far as the file does.
func (d *Doc) find(path []any) (line int, whole bool) {
	node, line := d.root, d.root.Line
	for _, p := range path {
		key, value := child(node, p)
		if value == nil {
			return line, false
		}
		node, line = value, key.Line
	}
	return line, true
}

// child returns the node that stands for step in n and its value. The two are
// the same for an item of a list.
func child(n *yaml.Node, step any) (key, value *yaml.Node) {
	switch s := step.(type) {
	case string:
		if n.Kind != yaml.MappingNode {
			return nil, nil
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == s {
				return n.Content[i], n.Content[i+1]
			}
		}
	case int:
		if n.Kind == yaml.SequenceNode && s >= 0 && s < len(n.Content) {
			return n.Content[s], n.Content[s]
		}
	}
	return nil, nil
}

func emptyError(name string) error {
	return &Error{File: name, Line: 1, Message: "the file is empty: write at least one field, or restore the file"}
}

var yamlLine = regexp.MustCompile(`line (\d+): `)

// syntaxError lifts the line out of the library's text.
func syntaxError(name string, err error) error {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil && n > 0 {
			line = n
		}
		text = strings.Replace(text, m[0], "", 1)
	}
	return &Error{File: name, Line: line, Message: "is not valid YAML: " + text + ": check indentation, colons and quotes around this line"}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }
