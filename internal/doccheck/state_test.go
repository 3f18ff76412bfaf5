package doccheck

import (
	"go/ast"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// folders are where the types of /state are declared, by the name of their package.
var folders = map[string]string{"file": "discovery/file", "kube": "discovery/kube", "excerpt": "discovery/excerpt", "boundtoken": "discovery/kube/boundtoken", "identity": "identity", "peer": "federation/peer", "federation": "federation", "healthstream": "federation/healthstream", "standing": "health/standing", "pods": "nodeproxy/pods"}

// leaves are types of values that are no groups.
var leaves = map[string]string{
	"string": "text", "bool": "true or false", "int": "whole number", "int64": "whole number", "uint16": "whole number", "uint32": "whole number",
	"uint64": "whole number", "float64": "number", "time.Time": "time, RFC 3339", "spiffeid.ID": "SPIFFE ID", "mesh.EndpointID": "endpoint ID",
	"Instance": "instance, 32 hexadecimal digits", "record.Instance": "instance, 32 hexadecimal digits",
	"Held": "a word, see below", "standing.Held": "a word, see below",
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

// TestObservabilityPageHasEveryFieldOfAnswers holds the JSON of isthmus status and
// isthmus explain.
func TestObservabilityPageHasEveryFieldOfAnswers(t *testing.T) {
	page := openPage(t, metricsPage)
	for name, typ := range map[string]string{"answer of status": "Status", "answer of explain": "Explanation"} {
		var b strings.Builder
		b.WriteString("\n| key | kind | meaning |\n|---|---|---|\n")
		writeFields(t, &b, "internal/answer", typ, "")
		page.section(t, name, b.String()+"\n")
	}
	page.close(t)
}

// writeFields writes a row for every field of the struct that JSON shows, and of the
// structs in it.
func writeFields(t *testing.T, b *strings.Builder, dir, typ, prefix string, hidden ...string) {
	t.Helper()
	fields := structOf(t, dir, typ).Fields.List
	for _, f := range fields {
		name, option, _ := strings.Cut(jsonTag(f), ",")
		if len(f.Names) == 0 { // its fields are in JSON like those of typ, which go before
			var own []string
			for _, o := range fields {
				n, _, _ := strings.Cut(jsonTag(o), ",")
				own = append(own, n)
			}
			at, in := within(dir, f.Type.(*ast.SelectorExpr).X.(*ast.Ident).Name+"."+f.Type.(*ast.SelectorExpr).Sel.Name)
			writeFields(t, b, at, in, prefix, own...)
			continue
		}
		if slices.Contains(hidden, name) {
			continue
		}
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
		if group == typ {
			kind += " of the same"
		}
		b.WriteString("| `" + prefix + name + "` | " + kind + " | " + cell(doc) + " |\n")
		if group != "" && group != typ {
			at, in := within(dir, group)
			writeFields(t, b, at, in, prefix+name+suffix+".")
		}
	}
}

// within returns the folder and the name of a type that a struct in dir names.
func within(dir, typ string) (at, name string) {
	if pkg, sel, ok := strings.Cut(typ, "."); ok {
		return folders[pkg], sel
	}
	return dir, typ
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
