package depcheck

import (
	"go/ast"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestEveryEdgeIsAllowedAndEveryAllowedEdgeIsUsed(t *testing.T) {
	e := edges(sources(t))
	for _, from := range sorted(e) {
		for _, to := range sorted(e[from]) {
			if allowed[from][to] == "" {
				t.Errorf("%s: %s imports %s: add the edge with its reason to internal/depcheck/edges_test.go, or find another way", e[from][to], from, to)
			}
		}
	}
	for _, from := range sorted(allowed) {
		for _, to := range sorted(allowed[from]) {
			if _, used := e[from][to]; !used {
				t.Errorf("%s no longer imports %s: remove the edge from internal/depcheck/edges_test.go", from, to)
			}
		}
	}
}

// pure packages decide and touch nothing: time and randomness are arguments.
var pure = []string{
	"mesh", "policy", "route", "health", "health/standing", "balance", "nodeproxy/picker", "nodeproxy/warmset", "nodeproxy/acceptqueue", "gateway/picker", "discovery", "discovery/ztunnel", "hbone/flow", "hbone/header", "hbone/wire",
	"federation", "federation/antientropy", "federation/damping", "federation/ledger", "federation/networkkey", "federation/record",
}

// world are the imports that touch it. A path that ends in "/" stands for all
// below it.
var world = []string{
	"os", "os/", "net", "net/http", "net/http/", "net/rpc", "net/smtp", "net/textproto", "io/fs", "io/ioutil", "syscall", "path/filepath",
	"context", "log", "log/", "math/rand", "math/rand/", "crypto/rand", "crypto/tls", "crypto/x509", "embed", "plugin", "runtime", "runtime/", "testing", "testing/",
}

// guests are the packages of others that a pure package may use.
var guests = map[string]string{
	"github.com/spiffe/go-spiffe/v2/spiffeid":       "the type of an identity; parses, dials nothing",
	"google.golang.org/protobuf/proto":              "the codec of records",
	"google.golang.org/protobuf/encoding/protowire": "the codec of records",
	"golang.org/x/net/http2":                        "the types of frames and error codes",
	"golang.org/x/net/http2/hpack":                  "the type of a header field",
	"go.yaml.in/yaml/v3":                            "the codec of exported configurations",
}

func TestPurePackagesTouchNothing(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || !slices.Contains(pure, s.pkg) {
			continue
		}
		for path, pos := range s.imports {
			if matches(world, path) {
				t.Errorf("%s: the pure package %s imports %s: let a child folder do it", s.at(pos), s.pkg, path)
			}
			if _, ours := own(path); !ours && strings.Contains(strings.SplitN(path, "/", 2)[0], ".") && guests[path] == "" {
				t.Errorf("%s: the pure package %s imports %s: add it to guests with a reason, or find another way", s.at(pos), s.pkg, path)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: the pure package %s starts a goroutine", s.at(n.Pos()), s.pkg)
			case *ast.SelectorExpr:
				if clock(s, n) {
					t.Errorf("%s: the pure package %s reads the clock by time.%s: take a time.Time as an argument", s.at(n.Pos()), s.pkg, n.Sel.Name)
				}
			}
			return true
		})
	}
}

// clock reports whether n is a function of package time that asks for the time
// or waits for it.
func clock(s source, n *ast.SelectorExpr) bool {
	return selects(s, n, "time", "Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker")
}

// selects reports whether n is one of names in the package with import path
// path, as s calls it.
func selects(s source, n *ast.SelectorExpr, path string, names ...string) bool {
	x, ok := n.X.(*ast.Ident)
	if !ok || !slices.Contains(names, n.Sel.Name) {
		return false
	}
	for _, i := range s.file.Imports {
		if i.Path.Value != `"`+path+`"` {
			continue
		}
		called := path[strings.LastIndexByte(path, '/')+1:]
		if i.Name != nil {
			called = i.Name.Name
		}
		return x.Name == called
	}
	return false
}

func matches(list []string, path string) bool {
	for _, w := range list {
		if path == w || strings.HasSuffix(w, "/") && strings.HasPrefix(path, w) {
			return true
		}
	}
	return false
}

func TestTunnelsKnowNoMeshAndOpenNoSockets(t *testing.T) {
	all := sources(t)
	if e := edges(all); reach(e, "hbone")["mesh"] {
		t.Error("hbone needs mesh: a session layer knows no policy; pass what it needs as plain values")
	}
	for _, s := range all {
		if s.test || s.pkg != "hbone" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if ok && (selects(s, sel, "net", "Dial", "DialTimeout", "DialTCP", "DialIP", "DialUDP", "DialUnix", "Dialer", "Listen", "ListenTCP", "ListenUDP", "ListenUnix", "ListenPacket", "ListenConfig") ||
				selects(s, sel, "crypto/tls", "Dial", "DialWithDialer", "Dialer", "Listen")) {
				t.Errorf("%s: hbone uses %s: it works on connections that it is handed", s.at(sel.Pos()), sel.Sel.Name)
			}
			return true
		})
	}
}

func TestOnlyDiscoveryKubeKnowsKubernetes(t *testing.T) {
	all := sources(t)
	for _, s := range all {
		for path, pos := range s.imports {
			host, _, _ := strings.Cut(path, "/")
			if (host == "k8s.io" || host == "sigs.k8s.io") && s.pkg != "discovery/kube" && !strings.HasPrefix(s.pkg, "discovery/kube/") && !(s.test && s.pkg == "integration/kubernetes") {
				t.Errorf("%s: %s imports %s: only discovery/kube and what is below it may", s.at(pos), s.pkg, path)
			}
		}
	}
	e := edges(all)
	for _, p := range []string{"nodeproxy", "cmd/nodeproxy", "hbone", "identity", "federation/gossip", "federation/healthstream"} {
		if reach(e, p)["discovery/kube"] {
			t.Errorf("%s needs discovery/kube: the data path never links client-go", p)
		}
	}
}

// parts are packages for tests alone. They may import anything, and nothing
// but a test may import them.
var parts = []string{"internal/simnet", "internal/testlb", "internal/h2conform", "internal/meshtest", "internal/meshtest/trust", "internal/depcheck", "internal/doccheck"}

func TestTestPartsStayInTests(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || slices.Contains(parts, s.pkg) {
			continue
		}
		for path, pos := range s.imports {
			if to, ok := own(path); path == "testing" && s.pkg != "integration" || ok && slices.Contains(parts, to) {
				t.Errorf("%s: %s imports %s outside of a test", s.at(pos), s.pkg, path)
			}
		}
	}
}

// domains are the folders at the top: ls is the architecture.
var domains = []string{
	"balance", "build", "bin", "cmd", "control", "controller", "discovery", "docs", "drill", "examples", "federation", "gateway", "hbone", "health", "helm", "identity", "integration", "internal", "mesh", "nodeproxy", "policy", "route",
}

func TestTopLevelFoldersAreDomainNouns(t *testing.T) {
	list, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if d.IsDir() && !strings.HasPrefix(d.Name(), ".") && !slices.Contains(domains, d.Name()) {
			t.Errorf("%s is a new folder at the top: add it to domains if it is a noun of the mesh", d.Name())
		}
	}
	for _, s := range sources(t) {
		for part := range strings.SplitSeq(s.pkg, "/") {
			if slices.Contains([]string{"pkg", "util", "utils", "common", "types", "helpers", "misc"}, part) {
				t.Errorf("%s: a folder %q says nothing about what is in it", filepath.ToSlash(s.name), part)
			}
		}
	}
}
