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
	page, listed := openPage(t, metricsPage), places{}
	page.section(t, "state of gateway", fieldsTable(t, listed, "gateway", "state"))
	listed.elsewhere("the gateway")
	page.section(t, "state of nodeproxy", fieldsTable(t, listed, "nodeproxy", "state"))
	page.close(t)
}

// TestObservabilityPageHasEveryFieldOfAnswers holds the JSON of isthmus status and
// isthmus explain.
func TestObservabilityPageHasEveryFieldOfAnswers(t *testing.T) {
	page, listed := openPage(t, metricsPage), places{}
	page.section(t, "answer of status", fieldsTable(t, listed, "internal/answer", "Status"))
	listed.elsewhere("`isthmus status`")
	page.section(t, "answer of explain", fieldsTable(t, listed, "internal/answer", "Explanation"))
	page.close(t)
}

// places are the keys below which the fields of structs are listed, by folder and type.
type places map[string]string

// elsewhere adds the name of a finished table to its keys.
func (p places) elsewhere(table string) {
	for typ, key := range p {
		if !strings.Contains(key, " of ") {
			p[typ] = key + " of " + table
		}
	}
}

func fieldsTable(t *testing.T, listed places, dir, typ string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("\n| key | kind | meaning |\n|---|---|---|\n")
	writeFields(t, &b, listed, dir, typ, "")
	return b.String() + "\n"
}

// writeFields writes a row for each field of the struct in JSON, and for the fields of structs in
// it that are not listed yet.
func writeFields(t *testing.T, b *strings.Builder, listed places, dir, typ, prefix string, hidden ...string) {
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
			writeFields(t, b, listed, at, in, prefix, own...)
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
		for _, verb := range []string{" is ", " are "} {
			doc = strings.TrimPrefix(doc, f.Names[0].Name+verb)
		}
		if doc == "" {
			t.Errorf("%s: %s%s has no comment: write one beside %s.%s", dir, prefix, name, typ, f.Names[0].Name)
		}
		if option != "" {
			kind += ", or absent"
		}
		at, in := within(dir, group)
		place := listed[at+"."+in]
		if place != "" {
			kind += ", like " + place
		}
		b.WriteString("| `" + prefix + name + "` | " + kind + " | " + cell(doc) + " |\n")
		if group != "" && place == "" {
			listed[at+"."+in] = "`" + prefix + name + "`"
			writeFields(t, b, listed, at, in, prefix+name+suffix+".")
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
