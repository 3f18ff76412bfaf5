package strictyaml

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

type inlined struct {
	Alpha float64 `yaml:"alpha" doc:"a share" default:"0.3" env:"TEST_ALPHA"`
}

type item struct {
	Name      string       `yaml:"name" doc:"its name"`
	Addresses []netip.Addr `yaml:"addresses" doc:"where it lives"`
	Ready     *bool        `yaml:"ready"`
}

type sample struct {
	Network  string            `yaml:"network" doc:"the network" default:"west" env:"TEST_NETWORK"`
	Listen   netip.AddrPort    `yaml:"listen" env:"TEST_LISTEN"`
	Admin    netip.AddrPort    `yaml:"admin" default:"127.0.0.1:15000"`
	Every    time.Duration     `yaml:"every" default:"10s" env:"TEST_EVERY"`
	Port     uint16            `yaml:"port" env:"TEST_PORT"`
	Delta    int8              `yaml:"delta"`
	On       bool              `yaml:"on" env:"TEST_ON"`
	Words    []string          `yaml:"words" env:"TEST_WORDS"`
	Items    []item            `yaml:"items"`
	Labels   map[string]string `yaml:"labels"`
	ByName   map[string]item   `yaml:"byName"`
	Any      any               `yaml:"any"`
	Ratio    *float64          `yaml:"ratio" env:"TEST_RATIO"`
	Nested   holder            `yaml:"nested"`
	Internal int               `yaml:"-"`
}

type holder struct {
	Scope   string  `yaml:"scope"`
	Outlier inlined `yaml:",inline"`
}

func TestReadsEveryKindOfValueAndKeepsDefaults(t *testing.T) {
	s := sample{Network: "west", Every: 10 * time.Second, Port: 7}
	err := Decode("a.yaml", []byte(`
listen: 127.0.0.1:15008
every: 250ms
port:
delta: -3
on: true
words: [a, 5, "", true]
labels: {x: "1", y: 2}
byName:
  one: {name: n}
any: {k: [1, two]}
ratio: 0.5
items:
  - name: first
    addresses: [10.0.0.1, "fd00::1"]
    ready: false
  - {}
`), &s)
	if err != nil {
		t.Fatal(err)
	}
	if s.Network != "west" || s.Port != 7 {
		t.Errorf("a key left out or empty changed its default: network %q, port %d; want west and 7", s.Network, s.Port)
	}
	if s.Every != 250*time.Millisecond || s.Listen != netip.MustParseAddrPort("127.0.0.1:15008") || s.Delta != -3 || !s.On || *s.Ratio != 0.5 {
		t.Errorf("got %+v", s)
	}
	if want := []string{"a", "5", "", "true"}; !reflect.DeepEqual(s.Words, want) {
		t.Errorf("words = %q, want %q", s.Words, want)
	}
	if len(s.Items) != 2 || s.Items[0].Addresses[1] != netip.MustParseAddr("fd00::1") || *s.Items[0].Ready || s.Items[1].Ready != nil {
		t.Errorf("items = %+v", s.Items)
	}
	if s.Labels["y"] != "2" || s.ByName["one"].Name != "n" {
		t.Errorf("labels %v, byName %v", s.Labels, s.ByName)
	}
	if want := map[string]any{"k": []any{1, "two"}}; !reflect.DeepEqual(s.Any, want) {
		t.Errorf("any = %#v, want %#v", s.Any, want)
	}
}

func TestMistakesNameFileLineFieldValueAndRemedy(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"misspelt", "port: 1\nnetwrok: x\n", `a.yaml:2: unknown key "netwrok": did you mean "network"?`},
		{"swapped letters", "lsiten: x\n", `a.yaml:1: unknown key "lsiten": did you mean "listen"?`},
		{"other case", "Network: x\n", `a.yaml:1: unknown key "Network": did you mean "network"?`},
		{"strange", "nested:\n  zzzzzzzz: 1\n", `a.yaml:2: unknown key "zzzzzzzz": known here: `},
		{"in an item", "items:\n- name: a\n- nam: b\n", `a.yaml:3: unknown key "nam": did you mean "name"?`},
		{"twice", "port: 1\non: true\nport: 2\n", `a.yaml:3: key "port" is given twice, first on line 1: remove one`},
		{"too large", "port: 70000\n", `a.yaml:1: port: "70000": out of range: want a whole number from 0 to 65535`},
		{"negative", "\nport: -1\n", `a.yaml:2: port: "-1": want a whole number from 0 to 65535`},
		{"signed", "delta: 128\n", `a.yaml:1: delta: "128": out of range: want a whole number from -128 to 127`},
		{"no unit", "every: 30\n", `a.yaml:1: every: "30": want a number with a unit, such as 250ms, 10s or 1h`},
		{"longer than a year", "every: 8760h1ns\n", `a.yaml:1: every: "8760h1ns": want at most 8760h, which is a year`},
		{"a year ago", "every: -8761h\n", `a.yaml:1: every: "-8761h": want at most 8760h, which is a year`},
		{"not a bool", "on: yes\n", `a.yaml:1: on: "yes": want true or false`},
		{"no port", "listen: 127.0.0.1\n", `a.yaml:1: listen: "127.0.0.1": want an IP address and a port, such as 127.0.0.1:15008`},
		{"no port, with a default", "admin: 127.0.0.1\n", `a.yaml:1: admin: "127.0.0.1": want an IP address and a port, such as 127.0.0.1:15000`},
		{"address in a list", "items:\n- addresses:\n  - 10.0.0.1\n  - 10.0.0.256\n", `a.yaml:4: items[0].addresses[1]: "10.0.0.256": want an IP address, such as 127.0.0.1`},
		{"not a number", "ratio: .nan\n", `a.yaml:1: ratio: ".nan": want a number, such as 0.25`},
		{"list for text", "network: [a]\n", `a.yaml:1: network: is a list: want text`},
		{"text for list", "items: a\n", `a.yaml:1: items: is "a": want a list`},
		{"text for group", "nested: a\n", `a.yaml:1: nested: is "a": want keys and values`},
		{"empty item", "items:\n- name: a\n-\n", `a.yaml:3: items[1]: is empty`},
		{"alias", "network: &n x\nwords: [*n]\n", `a.yaml:1: network: anchors and aliases (& and *) are not supported: write the value out`},
		{"alias below any", "any: {a: &n x}\n", `a.yaml:1: any: anchors and aliases`},
		{"tag", "network: !secret x\n", `a.yaml:1: network: "x" has the tag !secret: remove the tag`},
		{"merge", "nested: {<<: {a: b}}\n", `a.yaml:1: nested: a key here is "<<": write a plain word`},
		{"list as key", "[a]: b\n", `a.yaml:1: a key here is a list: write a plain word`},
		{"empty", "", `a.yaml:1: the file is empty`},
		{"only comments", "# nothing\n\n", `a.yaml:1: the file is empty`},
		{"only null", "---\n~\n", `a.yaml:1: the file is empty`},
		{"two documents", "port: 1\n---\nport: 2\n", `a.yaml:2: a second document begins here: remove the "---"`},
		{"not a mapping", "- a\n", `a.yaml:1: is a list: want keys and values`},
		{"not YAML", "port: 1\n  on: true: false\n", `a.yaml:2: is not valid YAML: mapping values are not allowed in this context`},
		{"tab", "nested:\n\tscope: a\n", `is not valid YAML: found character that cannot start any token`},
		{"unclosed", "port: {\n", `is not valid YAML`},
		{"not UTF-8", "network: \xff\xfe\n", `is not valid YAML`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s sample
			err := Decode("a.yaml", []byte(c.in), &s)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Decode(%q)\n got %v\nwant %s", c.in, err, c.want)
			}
		})
	}
}

func TestReportsAllMistakesUpToALimit(t *testing.T) {
	var s sample
	err := Decode("a.yaml", []byte("port: x\non: x\nevery: x\n"), &s)
	for _, want := range []string{"a.yaml:1: port", "a.yaml:2: on", "a.yaml:3: every"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v; want it to contain %q", err, want)
		}
	}
	err = Decode("a.yaml", []byte("words:\n"+strings.Repeat("- [x]\n", 10000)), &s)
	if lines := strings.Split(err.Error(), "\n"); len(lines) != maxErrors+1 || lines[maxErrors] != "a.yaml: and 9980 more" {
		t.Errorf("got %d lines ending in %q; want %d and a count", len(lines), lines[len(lines)-1], maxErrors+1)
	}
}

func TestDeepNestingIsAnErrorNotACrash(t *testing.T) {
	var s sample
	for _, in := range []string{strings.Repeat("[", 200000), "any: " + strings.Repeat("{a: ", 50000), strings.Repeat("- ", 50000)} {
		if err := Decode("a.yaml", []byte(in), &s); err == nil {
			t.Errorf("%.10q… was accepted", in)
		}
	}
}

func TestPosFindsKeysAndItems(t *testing.T) {
	d, err := Parse("a.yaml", []byte("network: x\nitems:\n- name: a\n  addresses:\n  - 10.0.0.1\n  - 10.0.0.2\n- name: b\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path []any
		want string
	}{
		{nil, "a.yaml:1"},
		{[]any{"network"}, "a.yaml:1"},
		{[]any{"items"}, "a.yaml:2"},
		{[]any{"items", 0}, "a.yaml:3"},
		{[]any{"items", 0, "addresses", 1}, "a.yaml:6"},
		{[]any{"items", 1, "name"}, "a.yaml:7"},
		{[]any{"items", 1, "addresses", 3}, "a.yaml:7"},
		{[]any{"items", 9}, "a.yaml:2"},
		{[]any{"network", 0, "x", 1.5}, "a.yaml:1"},
		{[]any{"nowhere"}, "a.yaml:1"},
	} {
		if got := d.Pos(c.path...); got != c.want {
			t.Errorf("Pos(%v) = %s, want %s", c.path, got, c.want)
		}
	}
}

func TestDecodeWantsAPointerToAStruct(t *testing.T) {
	for _, out := range []any{nil, sample{}, new(int), (*sample)(nil)} {
		if err := Decode("a.yaml", []byte("a: b\n"), out); err == nil {
			t.Errorf("Decode into %T succeeded", out)
		}
		if err := ApplyEnv(out, func(string) (string, bool) { return "", false }); err == nil {
			t.Errorf("ApplyEnv into %T succeeded", out)
		}
	}
}

func TestEnvironmentOverridesTheFile(t *testing.T) {
	env := map[string]string{"TEST_NETWORK": "north", "TEST_EVERY": "1s", "TEST_ON": "true", "TEST_WORDS": "a, b", "TEST_ALPHA": "0.1", "TEST_RATIO": "2", "TEST_PORT": ""}
	s := sample{Network: "west", Port: 9}
	if err := ApplyEnv(&s, lookup(env)); err != nil {
		t.Fatal(err)
	}
	if s.Network != "north" || s.Every != time.Second || !s.On || len(s.Words) != 2 || s.Words[1] != "b" || *s.Ratio != 2 {
		t.Errorf("got %+v", s)
	}
	if s.Nested.Outlier.Alpha != 0.1 {
		t.Errorf("inlined field = %v, want 0.1", s.Nested.Outlier.Alpha)
	}
	if s.Port != 9 {
		t.Errorf("port = %d: an empty variable must count as not set", s.Port)
	}
}

func TestBadEnvironmentNamesVariableValueAndRemedy(t *testing.T) {
	var s sample
	err := ApplyEnv(&s, lookup(map[string]string{"TEST_PORT": "70000", "TEST_LISTEN": "here", "TEST_EVERY": "2562047h"}))
	for _, want := range []string{
		`environment variable TEST_PORT: "70000": out of range: want a whole number from 0 to 65535`,
		`environment variable TEST_LISTEN: "here": want an IP address and a port`,
		`environment variable TEST_EVERY: "2562047h": want at most 8760h, which is a year`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v; want it to contain %q", err, want)
		}
	}
}

func TestKeysListsWhatAFileMaySay(t *testing.T) {
	keys := Keys(&sample{Network: "west", Every: 10 * time.Second})
	var names []string
	byName := map[string]Key{}
	for _, k := range keys {
		names = append(names, k.Name)
		byName[k.Name] = k
	}
	want := "network listen admin every port delta on words items items[].name items[].addresses items[].ready labels byName byName.*.name byName.*.addresses byName.*.ready any ratio"
	if got := strings.Join(names, " "); !strings.HasPrefix(got, want) {
		t.Errorf("got  %s\nwant %s …", got, want)
	}
	if got, want := byName["network"], (Key{Name: "network", Type: "string", Doc: "the network", Default: "west", Env: "TEST_NETWORK", Value: "west"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if k := byName["every"]; k.Value != "10s" || k.Type != "time.Duration" {
		t.Errorf("every = %+v", k)
	}
	if _, ok := byName["nested.alpha"]; !ok {
		t.Errorf("an inlined key is missing: %s", names)
	}
	if Keys(3) != nil {
		t.Error("Keys of a number is not empty")
	}
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		"", "---\n", "network: a\nport: 1\n", "items:\n- {name: a, addresses: [10.0.0.1]}\n", "any: {a: [1, {b: c}]}\n",
		"a: &a [*a]\n", "<<: {network: a}\n", "? [a]\n: b\n", "network: !!binary aGk=\n", "every: 99999999999999h\n", "a: b\n---\nc: d\n", "\xff", "network: |\n  a\n  b\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var s sample
		d, err := Parse("f.yaml", data)
		if err == nil {
			d.Pos("items", 0, "addresses", 1)
			err = d.Decode(&s)
		}
		if err != nil && !strings.Contains(err.Error(), "f.yaml:") {
			t.Errorf("error without a position: %v", err)
		}
	})
}
