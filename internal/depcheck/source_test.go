package depcheck

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
)

const (
	module = "github.com/isthmus-mesh/isthmus"
	root   = "../.."
)

// source is one Go file of ours.
type source struct {
	pkg     string // folder from the root of the repository, with slashes
	name    string // file from the root
	test    bool
	imports map[string]token.Pos // import path → where
	file    *ast.File
	fset    *token.FileSet
}

func (s source) at(p token.Pos) string {
	return s.name + ":" + strconv.Itoa(s.fset.Position(p).Line)
}

// own returns the folder of an import of ours.
func own(path string) (pkg string, ok bool) { return strings.CutPrefix(path, module+"/") }

// sources parses every Go file of the main module.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skip(path, d.Name())
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		s, err := parse(path)
		all = append(all, s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("found only %d Go files under %s", len(all), root)
	}
	return all
}

// skip leaves out folders that the go command leaves out, and other modules.
func skip(path, name string) error {
	if path == root {
		return nil
	}
	if name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil && hasGo(path) {
		return filepath.SkipDir
	}
	return nil
}

// hasGo reports whether a folder holds Go files: internal/tools has a go.mod
// but only folders of its own below it, each with theirs.
func hasGo(dir string) bool {
	m, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	return len(m) > 0
}

func parse(path string) (source, error) {
	s := source{fset: token.NewFileSet(), imports: map[string]token.Pos{}}
	f, err := parser.ParseFile(s.fset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return s, err
	}
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return s, err
	}
	s.name = filepath.ToSlash(rel)
	s.pkg = filepath.ToSlash(filepath.Dir(rel))
	s.test = strings.HasSuffix(path, "_test.go")
	s.file = f
	for _, i := range f.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return s, err
		}
		s.imports[p] = i.Pos()
	}
	return s, nil
}

// edges returns what our packages import of ours outside of tests and of the
// packages for tests alone.
func edges(all []source) map[string]map[string]string {
	out := map[string]map[string]string{}
	for _, s := range all {
		if s.test || slices.Contains(parts, s.pkg) {
			continue
		}
		if out[s.pkg] == nil {
			out[s.pkg] = map[string]string{}
		}
		for path, pos := range s.imports {
			if to, ok := own(path); ok {
				out[s.pkg][to] = s.at(pos)
			}
		}
	}
	return out
}

// reach returns every package of ours that from needs, itself included.
func reach(e map[string]map[string]string, from string) map[string]bool {
	seen := map[string]bool{}
	var visit func(string)
	visit = func(p string) {
		if seen[p] {
			return
		}
		seen[p] = true
		for to := range e[p] {
			visit(to)
		}
	}
	visit(from)
	return seen
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
