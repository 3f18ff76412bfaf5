package doccheck

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// generated is a page with sections that are written from the code.
type generated struct {
	path, text string
}

func openPage(t *testing.T, path string) *generated {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return &generated{path, string(b)}
}

// section compares the section of that name with want, or rewrites it.
func (g *generated) section(t *testing.T, name, want string) {
	t.Helper()
	begin := "<!-- " + name + ": written by go test ./internal/doccheck -update -->\n"
	before, rest, found := strings.Cut(g.text, begin)
	got, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Errorf("%s has no section between %q and %q", g.path, strings.TrimSpace(begin), strings.TrimSpace(end))
		return
	}
	if *update {
		g.text = before + begin + want + end + after
		return
	}
	for _, line := range missing(want, got) {
		t.Errorf("%s: not in %s: %s", name, g.path, line)
	}
	for _, line := range missing(got, want) {
		t.Errorf("%s: in %s but not in the code: %s", name, g.path, line)
	}
	if got != want && !t.Failed() {
		t.Errorf("%s: the table has another order", name)
	}
}

func (g *generated) close(t *testing.T) {
	t.Helper()
	if *update {
		if err := os.WriteFile(g.path, []byte(g.text), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if t.Failed() {
		t.Log("to rewrite the tables: go test ./internal/doccheck -update")
	}
}

// files parses the Go files of a folder, tests apart.
func files(t *testing.T, dir string) (out []*ast.File) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %v, %d files", dir, err, len(names))
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}

// constants returns the values of the string constants of a folder that have the
// named type, or, if that is empty, whose names begin with prefix, in their order.
func constants(t *testing.T, dir, typ, prefix string) (out []string) {
	t.Helper()
	for _, f := range files(t, dir) {
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				of, _ := v.Type.(*ast.Ident)
				if typ != "" && (of == nil || of.Name != typ) || typ == "" && (of != nil || !strings.HasPrefix(v.Names[0].Name, prefix)) || len(v.Values) != 1 {
					continue
				}
				if lit, ok := v.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					text, _ := strconv.Unquote(lit.Value)
					out = append(out, text)
				}
			}
		}
	}
	if len(out) == 0 {
		t.Fatalf("%s has no constants of type %q or named %s…", dir, typ, prefix)
	}
	return slices.Clip(out)
}
