package doccheck

import (
	"go/ast"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// folders are where the types of /state are declared, by the name of their package.
var folders = map[string]string{"file": "discovery/file", "identity": "identity", "peer": "federation/peer", "federation": "federation", "healthstream": "federation/healthstream"}

// leaves are types of values that are no groups.
var leaves = map[string]string{
	"string": "text", "bool": "true or false", "int": "whole number", "int64": "whole number", "uint16": "whole number", "uint32": "whole number",
	"uint64": "whole number", "float64": "number", "time.Time": "time, RFC 3339", "spiffeid.ID": "SPIFFE ID", "mesh.EndpointID": "endpoint ID",
	"Instance": "instance, 32 hexadecimal digits", "record.Instance": "instance, 32 hexadecimal digits",
	"federation.FactState": "healthy, ejected or terminating", "FactState": "healthy, ejected or terminating",
}

func TestObservabilityPageHasEveryFieldOfState(t *testing.T) {
	page := openPage(t, metricsPage)
	for _, dir := range []string{"gateway", "nodeproxy"} {
		var b strings.Builder
		b.WriteString("\n| key | kind | meaning |\n|---|---|---|\n")
		writeFields(t, &b, dir, "state", "")
		page.section(t, "state of "+dir, b.String()+"\n")
	}
	page.close(t)
}

// writeFields writes a row for every field of the struct that JSON shows, and of the
// structs in it.
func writeFields(t *testing.T, b *strings.Builder, dir, typ, prefix string) {
	t.Helper()
	for _, f := range structOf(t, dir, typ).Fields.List {
		name, option, _ := strings.Cut(jsonTag(f), ",")
		if len(f.Names) != 1 || name == "" {
			t.Errorf("%s: a field of %s has no name in JSON", dir, typ)
			continue
		}
		kind, group, suffix := shape(f.Type)
		doc := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
		doc = strings.TrimPrefix(doc, f.Names[0].Name+" is ")
		if doc == "" {
			t.Errorf("%s: %s%s has no comment: write one beside %s.%s", dir, prefix, name, typ, f.Names[0].Name)
		}
		if option != "" {
			kind += ", or absent"
		}
		b.WriteString("| `" + prefix + name + "` | " + kind + " | " + cell(doc) + " |\n")
		if group != "" {
			at, in := dir, group
			if pkg, sel, ok := strings.Cut(group, "."); ok {
				at, in = folders[pkg], sel
			}
			writeFields(t, b, at, in, prefix+name+suffix+".")
		}
	}
}

// shape says what kind of value a type is; group is the struct in it, if any, and
// suffix how the keys of that follow.
func shape(e ast.Expr) (kind, group, suffix string) {
	switch e := e.(type) {
	case *ast.StarExpr:
		return shape(e.X)
	case *ast.ArrayType:
		k, g, _ := shape(e.Elt)
		if g != "" {
			return "list", g, "[]"
		}
		return "list of " + k, "", ""
	case *ast.MapType:
		k, g, _ := shape(e.Value)
		if g != "" {
			return "by name", g, ".*"
		}
		return "names with " + k, "", ""
	case *ast.SelectorExpr:
		return leafOr(e.X.(*ast.Ident).Name + "." + e.Sel.Name)
	case *ast.Ident:
		return leafOr(e.Name)
	}
	return "?", "", ""
}

func leafOr(name string) (kind, group, suffix string) {
	if k, ok := leaves[name]; ok {
		return k, "", ""
	}
	return "group", name, ""
}

func jsonTag(f *ast.Field) string {
	if f.Tag == nil {
		return ""
	}
	text, _ := strconv.Unquote(f.Tag.Value)
	return reflect.StructTag(text).Get("json")
}

func structOf(t *testing.T, dir, name string) *ast.StructType {
	t.Helper()
	var found *ast.StructType
	for _, f := range files(t, dir) {
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.TypeSpec); ok && s.Name.Name == name {
				found, _ = s.Type.(*ast.StructType)
			}
			return found == nil
		})
	}
	if found == nil {
		t.Fatalf("%s has no struct %s", dir, name)
	}
	return found
}
