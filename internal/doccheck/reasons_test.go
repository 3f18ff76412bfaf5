package doccheck

import (
	"fmt"
	"go/ast"
	"go/token"
	"strconv"
	"strings"
	"testing"
)

// TestObservabilityPageHasEveryReason writes the reasons from the constants and the
// comments beside them.
func TestObservabilityPageHasEveryReason(t *testing.T) {
	g := openPage(t, "../../docs/observability.md")
	var b strings.Builder
	b.WriteString("\n| reason | source | meaning |\n|---|---|---|\n")
	for _, list := range []struct{ dir, prefix, source string }{
		{"hbone/header", "Reason", "node proxy or gateway, in its answer"},
		{"nodeproxy", "reason", "node proxy of the client"},
		{"gateway", "attempt", "gateway, in `tried`"},
	} {
		for _, r := range commented(t, list.dir, list.prefix) {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r[0], list.source, r[1])
		}
	}
	b.WriteString("\n")
	g.section(t, "reasons", b.String())
	g.close(t)
}

// commented returns value and comment of each constant of text whose name begins with
// prefix. One that stands for another's is looked up in package identity.
func commented(t *testing.T, dir, prefix string) (out [][2]string) {
	t.Helper()
	for _, f := range files(t, dir) {
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				if !strings.HasPrefix(v.Names[0].Name, prefix) || len(v.Values) != 1 {
					continue
				}
				text := ""
				switch x := v.Values[0].(type) {
				case *ast.BasicLit:
					text, _ = strconv.Unquote(x.Value)
				case *ast.SelectorExpr:
					text = constants(t, "identity", "", x.Sel.Name)[0]
				}
				said := strings.TrimSpace(v.Comment.Text())
				if text == "" || said == "" {
					t.Errorf("%s: %s needs a text and a comment that says what it means", dir, v.Names[0].Name)
				}
				out = append(out, [2]string{text, said})
			}
		}
	}
	return out
}
