package depcheck

import (
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// alone returns what the Makefile tests without the race detector.
func alone(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if list, ok := strings.CutPrefix(line, "ALONE :="); ok {
			return strings.Fields(list)
		}
	}
	t.Fatal("the Makefile has no line that begins with ALONE :=")
	return nil
}

// Where no code and no test starts a goroutine, the race detector has nothing to find.
func TestWhatIsTestedWithoutTheRaceDetectorStartsNoGoroutine(t *testing.T) {
	all := sources(t)
	for _, pkg := range alone(t) {
		needs, tested := needs(all, pkg)
		if !tested {
			t.Errorf("ALONE in the Makefile names %s, which has no test", pkg)
		}
		for _, s := range all {
			if s.pkg != pkg && (s.test || !needs[s.pkg]) {
				continue
			}
			if what := concurrency(s); what != "" {
				t.Errorf("%s: tests of %s can meet a race: take it out of ALONE in the Makefile", what, pkg)
			}
		}
	}
}

// needs returns every package of ours that pkg and its tests need.
func needs(all []source, pkg string) (needs map[string]bool, tested bool) {
	e := edges(all)
	needs = reach(e, pkg)
	for _, s := range all {
		if !s.test || s.pkg != pkg {
			continue
		}
		tested = true
		for path := range s.imports {
			if to, ok := own(path); ok {
				maps.Copy(needs, reach(e, to))
			}
		}
	}
	return needs, tested
}

// concurrent are calls that let two goroutines run, whatever they are called on.
var concurrent = []string{"Go", "AfterFunc", "Parallel", "RunParallel", "Serve", "ListenAndServe", "NewServer"}

// concurrency returns where and by what s lets two goroutines run, or nothing.
func concurrency(s source) (what string) {
	for path, pos := range s.imports {
		if slices.Contains([]string{"testing/synctest", "net/http/httptest", "golang.org/x/sync/errgroup"}, path) {
			return s.at(pos) + ": imports " + path
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			what = s.at(n.Pos()) + ": starts a goroutine"
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && slices.Contains(concurrent, f.Sel.Name) {
				what = s.at(n.Pos()) + ": calls " + f.Sel.Name
			}
		}
		return what == ""
	})
	return what
}
