package doccheck

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// variable is how the page writes the name of an environment variable.
var variable = regexp.MustCompile("`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)`")

func TestConfigurationPageHasEveryEnvironmentVariable(t *testing.T) {
	known := inTags()
	for name, where := range inCode(t) {
		known[name] = where
	}
	text := read(t)
	for name, where := range known {
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("%s (%s) is not in docs/configuration.md", name, where)
		}
	}
	for _, m := range variable.FindAllStringSubmatch(text, -1) {
		if known[m[1]] == "" {
			t.Errorf("docs/configuration.md names %s, which nothing reads", m[1])
		}
	}
}

func inTags() map[string]string {
	known := map[string]string{}
	for _, d := range documents {
		for _, k := range strictyaml.Keys(d.root) {
			if k.Env != "" {
				known[k.Env] = d.name + ", " + k.Name
			}
		}
	}
	return known
}

// inCode returns the names that our own code looks up in the environment by
// itself, outside of tests and of what only tests run.
func inCode(t *testing.T) map[string]string {
	t.Helper()
	known := map[string]string{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); n == "testdata" || strings.HasSuffix(path, "integration/kubernetes") || strings.HasSuffix(path, "internal/netspace") || n == "tools" || len(n) > 2 && n[0] == '.' {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if name, ok := lookedUp(n); ok {
				known[name] = fset.Position(n.Pos()).String()
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return known
}

// lookedUp returns the literal name in os.Getenv("NAME") or os.LookupEnv.
func lookedUp(n ast.Node) (name string, ok bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return "", false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "Getenv" && f.Sel.Name != "LookupEnv" {
		return "", false
	}
	lit, ok := call.Args[0].(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	name, err := strconv.Unquote(lit.Value)
	return name, err == nil
}
