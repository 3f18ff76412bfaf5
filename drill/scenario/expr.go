package scenario

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Expr is a metric with its selectors, as in an assertion:
// "latency_ms(q=p99, phase=fault)".
type Expr struct {
	Name string
	Args map[string]string
}

// ParseExpr reads name or name(key=value, …). It does not know which exist.
func ParseExpr(text string) (Expr, error) {
	name, rest, has := strings.Cut(strings.TrimSpace(text), "(")
	e := Expr{Name: strings.TrimSpace(name), Args: map[string]string{}}
	if e.Name == "" {
		return e, errors.New("names no metric: write for example failed or failed(phase=fault)")
	}
	if !has {
		return e, nil
	}
	inner, ok := strings.CutSuffix(strings.TrimSpace(rest), ")")
	if !ok {
		return e, errors.New("misses the closing parenthesis")
	}
	for part := range strings.SplitSeq(inner, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		k, v, ok := strings.Cut(part, "=")
		k, v = strings.TrimSpace(k), strings.TrimSpace(v)
		if !ok || k == "" || v == "" {
			return e, fmt.Errorf("selector %q: write key=value", strings.TrimSpace(part))
		}
		if _, twice := e.Args[k]; twice {
			return e, fmt.Errorf("selector %s is given twice", k)
		}
		e.Args[k] = v
	}
	return e, nil
}

// Check reports whether the metric exists, takes these selectors, and whether
// what they name is in the scenario: every mistake in one line.
func (e Expr) Check(s *Scenario) error {
	var wrong []string
	m, ok := metrics[e.Name]
	if !ok {
		return fmt.Errorf("is no metric: use one of %s", strings.Join(MetricNames(), ", "))
	}
	for _, k := range slices.Sorted(maps.Keys(e.Args)) {
		if !slices.Contains(m.Takes, k) {
			wrong = append(wrong, fmt.Sprintf("%s does not take the selector %s: it takes %s", e.Name, k, orNone(m.Takes)))
		} else if err := checkArg(s, k, e.Args[k]); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	for _, k := range m.Needs {
		if e.Args[k] == "" {
			wrong = append(wrong, fmt.Sprintf("%s needs the selector %s", e.Name, k))
		}
	}
	if wrong != nil {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

func checkArg(s *Scenario, k, v string) error {
	ok := true
	switch k {
	case "network", "to":
		ok = s.network(v) != nil
	case "port":
		_, ok = s.PortByName(v)
	case "fault":
		ok = s.fault(v) != nil
	case "phase":
		ok = slices.Contains(namesFor(s, k), v)
	case "q":
		ok = slices.Contains(quantileNames, v)
		if !ok {
			return fmt.Errorf("q=%s: use one of %s", v, strings.Join(quantileNames, ", "))
		}
	case "role":
		if v != RoleGateway && v != RoleNodeProxy {
			return fmt.Errorf("role=%s: use one of %s, %s", v, RoleGateway, RoleNodeProxy)
		}
	case "after":
		d, err := time.ParseDuration(v)
		if err != nil || d < 0 {
			return fmt.Errorf("after=%s: write a duration, for example 1s", v)
		}
	}
	if !ok {
		return fmt.Errorf("%s=%s: the scenario has none of that name: use one of %s", k, v, strings.Join(namesFor(s, k), ", "))
	}
	return nil
}

// namesFor lists what the selector may name.
func namesFor(s *Scenario, selector string) (out []string) {
	if selector == "phase" {
		out = slices.DeleteFunc(slices.Clone(windowNames), func(w string) bool { return w == "surge" && !s.Traffic.Surge.Given() })
	}
	switch selector {
	case "network", "to":
		for _, n := range s.Networks {
			out = append(out, n.Name)
		}
	case "port":
		for _, p := range s.Ports() {
			out = append(out, p.Name)
		}
	case "fault", "phase":
		for _, f := range s.Faults {
			out = append(out, f.Name)
		}
	}
	return out
}

// Bound is what an observed value is compared with.
type Bound struct {
	Op    string
	Value float64
}

// operators in an order in which the longer ones are found first.
var operators = []string{"==", "!=", "<=", ">=", "<", ">"}

// ParseBound reads an operator and a number, such as "<= 0.1".
func ParseBound(text string) (Bound, error) {
	text = strings.TrimSpace(text)
	for _, op := range operators {
		if rest, ok := strings.CutPrefix(text, op); ok {
			v, _, err := parseShare(rest)
			if err != nil {
				return Bound{}, errors.New("write a number after the operator, for example < 50 or <= 10 %")
			}
			return Bound{op, v}, nil
		}
	}
	return Bound{}, errors.New("write an operator (==, !=, <, <=, >, >=) and a number, for example == 0")
}

// Holds reports whether v satisfies b.
func (b Bound) Holds(v float64) bool {
	switch b.Op {
	case "==":
		return v == b.Value
	case "!=":
		return v != b.Value
	case "<":
		return v < b.Value
	case "<=":
		return v <= b.Value
	case ">":
		return v > b.Value
	case ">=":
		return v >= b.Value
	}
	return false
}

func (b Bound) String() string { return b.Op + " " + strconv.FormatFloat(b.Value, 'g', -1, 64) }
