package doccheck

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/controller"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// documents are the roots of every YAML file that we read.
var documents = []document{
	{name: "discovery.Config", root: discovery.DefaultConfig()},
	{name: "nodeproxy.Config", root: nodeproxy.DefaultConfig(), later: []string{"identity."}},
	{name: "gateway.Config", root: gateway.DefaultConfig(), later: []string{"identity."}},
	{name: "controller.Config", root: controller.DefaultConfig(), later: []string{"identity."}},
	{name: "keyfile.File", root: keyfile.File{}, later: []string{"networks"}},
	{name: "scenario.Scenario", root: scenario.Scenario{}, later: []string{""}},
}

// document is one kind of YAML file.
type document struct {
	name string
	root any // with its defaults, so that default tags can be compared
	// later are the beginnings of keys whose defaults are filled in after the
	// file was read; root does not hold them.
	later []string
}

const page = "../../docs/configuration.md"

var update = flag.Bool("update", false, "rewrite the tables in docs/configuration.md")

func (d document) begin() string {
	return "<!-- keys of " + d.name + ": written by go test ./internal/doccheck -update -->\n"
}

const end = "<!-- end -->\n"

// table is the section of the page that belongs to d.
func (d document) table() string {
	var b strings.Builder
	b.WriteString("\n| key | kind | default | environment | meaning |\n|---|---|---|---|---|\n")
	for _, k := range strictyaml.Keys(d.root) {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", k.Name, kind(k.Type), code(k.Default), code(k.Env), cell(k.Doc))
	}
	b.WriteString("\n")
	return b.String()
}

// kind says for people how a value of a Go type is written. What has a type of
// its own is a word of a closed list, so text.
func kind(typ string) string {
	switch {
	case strings.HasPrefix(typ, "[]"):
		item := strings.TrimPrefix(typ, "[]")
		if strings.Contains(item, ".") && kind(item) == "text" { // a group of keys, listed below it
			return "list"
		}
		return "list of " + kind(item)
	case strings.HasPrefix(typ, "map[string]"):
		return "names with values"
	case strings.HasPrefix(typ, "int"), strings.HasPrefix(typ, "uint"):
		return "whole number"
	case strings.HasPrefix(typ, "float"):
		return "number"
	case typ == "bool":
		return "true or false"
	case typ == "time.Duration":
		return "duration"
	case typ == "netip.Addr":
		return "address"
	case typ == "netip.AddrPort":
		return "address:port"
	}
	return "text"
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + cell(s) + "`"
}

// cell keeps text inside its column.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ").Replace(s)
}

func TestConfigurationPageHasEveryKey(t *testing.T) {
	text := read(t)
	for _, d := range documents {
		before, rest, found := strings.Cut(text, d.begin())
		if !found && *update {
			before, rest, found = text+"\n## `"+d.name+"`\n\n", end, true
		}
		got, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Errorf("docs/configuration.md has no section between %q and %q: run go test ./internal/doccheck -update and write a heading above it", strings.TrimSpace(d.begin()), strings.TrimSpace(end))
			continue
		}
		want := d.table()
		if *update {
			text = before + d.begin() + want + end + after
			continue
		}
		for _, line := range missing(want, got) {
			t.Errorf("%s: not in docs/configuration.md: %s", d.name, line)
		}
		for _, line := range missing(got, want) {
			t.Errorf("%s: in docs/configuration.md but not in the struct: %s", d.name, line)
		}
		if got != want && !t.Failed() {
			t.Errorf("%s: the table has another order", d.name)
		}
	}
	if *update {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if t.Failed() {
		t.Log("to rewrite the tables: go test ./internal/doccheck -update")
	}
}

// missing returns the lines of a that b does not have.
func missing(a, b string) (lines []string) {
	have := strings.Split(b, "\n")
	for line := range strings.SplitSeq(a, "\n") {
		if !slices.Contains(have, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestConfigurationPageHasNoSectionOfAnUnknownFile(t *testing.T) {
	for _, m := range regexp.MustCompile(`<!-- keys of ([^:]+):`).FindAllStringSubmatch(read(t), -1) {
		if !slices.ContainsFunc(documents, func(d document) bool { return d.name == m[1] }) {
			t.Errorf("docs/configuration.md has a section for %s, which is not in the list of documents", m[1])
		}
	}
}

func TestEveryKeySaysWhatItMeans(t *testing.T) {
	for _, d := range documents {
		keys := strictyaml.Keys(d.root)
		for i, k := range keys {
			// A list of groups may leave its meaning to the keys of its items, as
			// a group does.
			list := i+1 < len(keys) && strings.HasPrefix(keys[i+1].Name, k.Name+"[].")
			if k.Doc == "" && !list {
				t.Errorf("%s: %s has no doc tag", d.name, k.Name)
			}
		}
	}
}

func TestDefaultTagsSayWhatTheDefaultsAre(t *testing.T) {
	for _, d := range documents {
		for _, k := range strictyaml.Keys(d.root) {
			if strings.Contains(k.Name, "[]") || strings.Contains(k.Name, ".*") {
				continue // items have no instance to look at
			}
			if !sameValue(k) && !(k.Value == "" && d.filledLater(k.Name)) {
				t.Errorf("%s: %s: the tag says default %q, the defaults say %q", d.name, k.Name, k.Default, k.Value)
			}
		}
	}
}

func (d document) filledLater(key string) bool {
	return slices.ContainsFunc(d.later, func(begin string) bool { return strings.HasPrefix(key, begin) })
}

// sameValue compares a default tag with the value that the default holds.
func sameValue(k strictyaml.Key) bool {
	if k.Default == k.Value {
		return true
	}
	if k.Value == "" { // Value leaves zeros out
		return k.Default == "false" || k.Default == "0" || k.Default == "0s"
	}
	if a, err := time.ParseDuration(k.Default); err == nil {
		b, err := time.ParseDuration(k.Value)
		return err == nil && a == b
	}
	if a, err := strconv.ParseFloat(k.Default, 64); err == nil {
		b, err := strconv.ParseFloat(k.Value, 64)
		return err == nil && a == b
	}
	return false
}

func read(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
