package scenario

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// Every mistake of a file is told at once, in the order of its lines, whether
// it is one of spelling, of a value or of what values mean together.
func TestAllMistakesAreToldAtOnce(t *testing.T) {
	const text = `name: Bad Name
duration: soon
settel: 1s
networks:
  - {name: east, gateways: 9}
  - {name: west, pods: many}
services:
  - name: echo
    ports: [{name: A, port: 80}, {name: A, port: 8081}]
clients: [{network: south}]
traffic: {rate: 0, arrivals: often, abort: 2}
faults:
  - {kind: explode, at: 0s, until: -3s}
  - {name: run, kind: refuse, at: 4s, target: {network: west, node: 1, names: [west-9], port: C}}
arms: [{name: one, retry: {attempts: 1000}, lines: {transport: udp}}, {name: one}]
assertions:
  - {arm: two, metric: "share(port=D, phase=never)", bound: about 5}
`
	_, err := Parse("bad.yaml", []byte(text))
	if err == nil {
		t.Fatal("the file was taken")
	}
	lines := strings.Split(err.Error(), "\n")
	want := []string{
		`bad.yaml:1: name: "Bad Name": must be`,
		`bad.yaml:2: duration: "soon": want a number with a unit`,
		`bad.yaml:3: unknown key "settel": did you mean "settle"?`,
		`bad.yaml:5: networks[0].gateways: 9: must be between 1 and 8`,
		`bad.yaml:6: networks[1].pods: "many": want a whole number`,
		`bad.yaml:9: services[0].ports[0].port: 80: is below 1024`,
		`bad.yaml:9: services[0].ports[1].name: "A": is given twice`,
		`bad.yaml:10: clients[0].network: "south": is no network`,
		`bad.yaml:11: traffic.rate: 0: must be above 0`,
		`bad.yaml:11: traffic.arrivals: "often": use one of: poisson, uniform`,
		`bad.yaml:11: traffic.abort: 2: must be a share`,
		`bad.yaml:13: faults[0].kind: "explode": use one of: refuse`,
		`bad.yaml:13: faults[0].at: 0s: must be at least 1s`,
		`bad.yaml:13: faults[0].until: -3s: must be after at`,
		`bad.yaml:14: faults[1].name: "run": is the name of a phase`,
		`bad.yaml:14: faults[1].target.node: 1: refuse does not take target.node`,
		`bad.yaml:14: faults[1].target.names[0]: "west-9": is no pod`,
		`bad.yaml:14: faults[1].target.port: "C": is no port`,
		`bad.yaml:15: arms[0].retry.attempts: 1000: must be between 0 and 100`,
		`bad.yaml:15: arms[0].lines.transport: "udp": use one of: tcp, quic, auto`,
		`bad.yaml:15: arms[1].name: "one": is given twice`,
		`bad.yaml:17: assertions[0].arm: "two": is no arm`,
		`bad.yaml:17: assertions[0].bound: "about 5": write an operator`,
		`bad.yaml:17: assertions[0].metric: "share(port=D, phase=never)": phase=never: the scenario has none of that name: use one of run, baseline, fault, healed, explode, run; port=D: the scenario has none of that name: use one of A, A; share needs the selector network`,
	}
	if len(lines) != len(want) {
		t.Errorf("%d mistakes told, want %d", len(lines), len(want))
	}
	last := ""
	for i, w := range want {
		at := -1
		for j, l := range lines {
			if strings.HasPrefix(l, w) {
				at = j
			}
		}
		if at < 0 {
			t.Errorf("not told: %s", w)
		}
		if number := lineOf(want[i]); number < last && len(number) == len(last) {
			t.Fatalf("the test's own list is not in order at %s", w)
		} else {
			last = number
		}
	}
	for i := 1; i < len(lines); i++ {
		if a, b := lineOf(lines[i-1]), lineOf(lines[i]); len(a) > len(b) || len(a) == len(b) && a > b {
			t.Errorf("line %s is told before line %s", a, b)
		}
	}
	if t.Failed() {
		t.Logf("told:\n%s", err)
	}
}

func lineOf(message string) string { return strings.Split(message, ":")[1] }

// What could not be read is not also called wrong.
func TestAFieldThatCannotBeReadIsToldOnce(t *testing.T) {
	for _, c := range [][2]string{
		{"duration: 12s", "duration: 12"}, {"clients: [{network: east}]", "clients: 5"}, {"names: [west-2]", "pods: some"}, {"port: 8080", "port: 99999"},
	} {
		_, err := Parse("small.yaml", []byte(strings.Replace(twoNetworks, c[0], c[1], 1)))
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want one line", c[1], err)
		}
	}
}

// goWords are words that only who knows the source can make sense of.
var goWords = regexp.MustCompile(`\b(u?int(8|16|32|64)?|float(32|64)|struct|reflect|drill\.|time\.Duration|Share|Count|Unmarshal\w*|nil|interface|slice|yaml: )\b|map\[|\[\]|%!`)

var placed = regexp.MustCompile(`^bad\.yaml:\d+: `)

func TestMessagesHaveNoGoTypes(t *testing.T) {
	data, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "```yaml\n")
	example, _, _ := strings.Cut(rest, "```")
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(example), &doc); err != nil {
		t.Fatal(err)
	}
	told := 0
	var visit func(n *yaml.Node)
	visit = func(n *yaml.Node) {
		was := *n
		for _, bad := range []string{"-1", "1.5", "x y", "99999999999999999999", "true", "[]", "{}", "[[1]]", "{a: b}", "null", "2026-01-01", ".nan", "!!binary aGk=", "120 %", "0x10"} {
			var other yaml.Node
			if err := yaml.Unmarshal([]byte(bad), &other); err != nil {
				t.Fatal(err)
			}
			*n = *other.Content[0]
			text, err := yaml.Marshal(&doc)
			if err != nil {
				continue
			}
			if _, err := Parse("bad.yaml", text); err != nil {
				told++
				if w := goWords.FindString(err.Error()); w != "" {
					t.Errorf("%q in the message: %v", w, err)
				}
				for _, l := range strings.Split(err.Error(), "\n") {
					if !placed.MatchString(l) {
						t.Errorf("no file and line: %s", l)
					}
				}
			}
			*n = was
		}
		for _, c := range n.Content {
			visit(c)
		}
	}
	visit(doc.Content[0])
	if told < 500 {
		t.Errorf("only %d mistakes were made", told)
	}
}

func TestSharesAreWrittenAsNumbersOrPercentages(t *testing.T) {
	text := strings.NewReplacer("fraction: 0.1", "fraction: 10 %", "names: [west-2]", "pods: 40%", "rate: 50", "rate: 50, abort: 0.2").Replace(twoNetworks)
	s := mustParse(t, text)
	if s.Traffic.Hold.Fraction != 0.1 || s.Traffic.Abort != 0.2 {
		t.Errorf("fraction %v, abort %v; want 0.1 and 0.2", s.Traffic.Hold.Fraction, s.Traffic.Abort)
	}
	if v := NewLayout(s, 9).VictimsOf(0); len(v.Pods) != 2 { // 1.6 of 4
		t.Errorf("40 %% of 4 pods: got %v", v.Pods)
	}
	for _, c := range []struct {
		text    string
		of, out int
	}{{"all", 7, 7}, {"3", 7, 3}, {"100 %", 7, 7}, {"1%", 7, 1}, {"50 %", 7, 4}, {"20 %", 10, 2}} {
		var n Count
		if err := n.UnmarshalText([]byte(c.text)); err != nil || n.Of(c.of) != c.out {
			t.Errorf("%s of %d: got %d, %v; want %d", c.text, c.of, n.Of(c.of), err, c.out)
		}
		var again Count
		b, _ := n.MarshalText()
		if err := again.UnmarshalText(b); err != nil || again != n {
			t.Errorf("%s is written %s and read %v, %v", c.text, b, again, err)
		}
	}
	if b, err := ParseBound("<= 10 %"); err != nil || b.Value != 0.1 {
		t.Errorf("<= 10 %%: got %v, %v", b, err)
	}
}

func TestServicePortsBelow1024HaveListenersAboveIt(t *testing.T) {
	s := mustParse(t, strings.Replace(twoNetworks, "{name: A, port: 8080}", "{name: A, port: 80, targetPort: 8080}", 1))
	l := NewLayout(s, 9)
	for _, c := range l.Clients {
		for i, a := range c.Listen {
			if a.Port() != s.Ports()[i].Target {
				t.Errorf("%s listens on %s for port %s, want the target port: below 1024 needs privileges", c.Name, a, s.Ports()[i].Name)
			}
		}
	}
}
