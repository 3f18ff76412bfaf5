package report

import (
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/measure"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// Printer tells a person what a drill does, line by line. Not safe for
// concurrent use.
type Printer struct {
	w      io.Writer
	colour bool
	told   int // lines of this arm's story
	left   int
}

// NewPrinter writes to w; colour only if asked for.
func NewPrinter(w io.Writer, colour bool) *Printer { return &Printer{w: w, colour: colour} }

// maxTold bounds the story of one arm on the terminal; drill.json has all of it.
const maxTold = 60

func (p *Printer) paint(code, s string) string {
	if !p.colour || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

const (
	bold  = "1"
	faint = "2"
	red   = "31"
	green = "32"
	amber = "33"
	blue  = "36"
)

// Begin prints what is going to be done.
func (p *Printer) Begin(s *scenario.Scenario, path string) {
	fmt.Fprintf(p.w, "%s  seed %d, %s\n", p.paint(bold, "drill "+s.Name), s.Seed, path)
	for _, n := range s.Networks {
		fmt.Fprintf(p.w, "  %-8s %s, %s, %s\n", n.Name, plural(n.Gateways, "gateway"), plural(n.Nodes, "node"), plural(n.Pods, "pod"))
	}
	fmt.Fprintf(p.w, "  %g new connections/s for %v in each of %s\n", s.Traffic.Rate, s.Duration, plural(len(s.Arms), "arm"))
	if g := s.Traffic.Surge; g.Given() {
		fmt.Fprintf(p.w, "  %g new connections/s from %v to %v\n", g.Rate, g.At, g.Until)
	}
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}

// ArmStarts is the begin of an arm.
func (p *Printer) ArmStarts(a scenario.Arm, n, of int) {
	p.told, p.left = 0, 0
	text := fmt.Sprintf("\n%s", p.paint(bold, fmt.Sprintf("arm %d/%d %s", n, of, a.Name)))
	if a.Description != "" {
		text += "  " + p.paint(faint, a.Description)
	}
	fmt.Fprintln(p.w, text)
}

// ArmRuns is the moment when traffic begins.
func (p *Printer) ArmRuns(_ scenario.Arm, took time.Duration) {
	fmt.Fprintf(p.w, "  ready after %.1f s, traffic begins\n", took.Seconds())
}

// Happened is one line of the arm's story.
func (p *Printer) Happened(_ scenario.Arm, h measure.Happening) {
	if p.told++; p.told > maxTold && h.Kind != "fault" && h.Kind != "healed" && h.Kind != "exit" {
		p.left++
		return
	}
	code := map[string]string{"fault": red, "healed": green, "ejected": amber, "readmitted": green, "told": blue, "exit": red}[h.Kind]
	fmt.Fprintf(p.w, "  %s  %s\n", p.paint(faint, fmt.Sprintf("%+9.3fs", h.At)), p.paint(code, h.Text))
}

// ArmAgain is the begin of the second run of an arm that a busy machine disturbed.
func (p *Printer) ArmAgain(a scenario.Arm) {
	p.told, p.left = 0, 0
	fmt.Fprintf(p.w, "  %s\n", p.paint(amber, "the machine was too busy; arm "+a.Name+" runs once more"))
}

// ArmDone sums the arm up.
func (p *Printer) ArmDone(a measure.ArmResult, seen []measure.Observation) {
	if p.left > 0 {
		fmt.Fprintf(p.w, "  %s\n", p.paint(faint, fmt.Sprintf("… and %d more events, see drill.json", p.left)))
	}
	for _, ph := range a.Phases {
		broken := ""
		if ph.Aborted > 0 {
			broken = fmt.Sprintf(" %d broken off,", ph.Aborted)
		}
		if ph.Refused > 0 {
			broken += fmt.Sprintf(" %d refused by overload,", ph.Refused)
		}
		fmt.Fprintf(p.w, "  %-9s %6.2f–%.2f s  %5d connections, %s failed,%s p50 %s p99 %s ms   %s\n", ph.Name, ph.From, ph.To, ph.Attempts,
			p.paint(badIf(ph.Failed > 0), strconv.Itoa(ph.Failed)), broken, num(ph.LatencyMS.P50), num(ph.LatencyMS.P99), shares(ph))
	}
	if why := measure.Lateness(a.Generator.LateP99MS); why != "" {
		fmt.Fprintf(p.w, "  %s %s\n", p.paint(amber, "latencies not comparable:"), why)
	}
	if g := a.Generator.Surge; g != nil {
		fmt.Fprintf(p.w, "  surge: %d connections, 1 %% of them began more than %s ms late\n", g.Planned, measure.Compact(g.LateP99MS))
	}
	for _, f := range a.Faults {
		fmt.Fprintf(p.w, "  fault %s was crossed by at least %s\n", f.Name, plural(f.Crossed, "client connection"))
	}
	for _, u := range a.Roles {
		fmt.Fprintf(p.w, "  %s: control bytes/s median %s, most %s; resident MiB median %s, most %s\n", roleOf(u),
			num(u.Control.Median), num(u.Control.Max), mib(u.Resident.Median), mib(u.Resident.Max))
	}
	for _, why := range a.Inconclusive {
		fmt.Fprintf(p.w, "  %s %s\n", p.paint(amber, "inconclusive:"), why)
	}
	if a.Kept != "" {
		fmt.Fprintf(p.w, "  configs and logs kept in %s\n", a.Kept)
	}
}

func roleOf(u measure.RoleUsage) string {
	words := map[measure.Role][2]string{measure.RoleGateway: {"gateway", "gateways"}, measure.RoleNodeProxy: {"node proxy", "node proxies"}}[u.Role]
	if u.Processes == 1 {
		return "1 " + words[0]
	}
	return strconv.Itoa(u.Processes) + " " + words[1]
}

func mib(bytes *float64) string {
	if bytes == nil {
		return num(nil)
	}
	v := *bytes / (1 << 20)
	return num(&v)
}

func badIf(bad bool) string {
	if bad {
		return red
	}
	return green
}

func num(v *float64) string {
	if v == nil {
		return "–"
	}
	return measure.Compact(*v)
}

func shares(p measure.Phase) string {
	var out []string
	for n, ports := range p.Shares {
		var names, values []string
		for port := range ports {
			names = append(names, port)
		}
		sort.Strings(names)
		for _, port := range names {
			values = append(values, fmt.Sprintf("%s %.0f%%", port, 100*ports[port]))
		}
		out = append(out, n+" "+strings.Join(values, " "))
	}
	sort.Strings(out)
	return strings.Join(out, ", ")
}

// End prints the assertions and the verdict in one line.
func (p *Printer) End(r *measure.Result) {
	fmt.Fprintf(p.w, "\n%s\n", p.paint(bold, "what had to hold"))
	arm := 0
	for _, o := range r.Assertions {
		arm = max(arm, len(o.Arm))
	}
	for _, o := range r.Assertions {
		mark := p.paint(green, "held  ")
		switch {
		case o.Doubt != "":
			mark = p.paint(amber, "doubt ")
		case unmeasured(r, o):
			mark = p.paint(amber, "not measured")
		case !o.Held:
			mark = p.paint(red, "BROKEN")
		}
		fmt.Fprintf(p.w, "  %s %-*s  %s: %s (bound %s)%s\n", mark, arm, o.Arm, o.Name, p.paint(bold, num(o.Observed)), o.Bound, p.paint(faint, note(o.Note)))
	}
	fmt.Fprintf(p.w, "\n%s\n", p.paint(bold, "side by side"))
	fmt.Fprintf(p.w, "  %-12s %9s %7s %5s %9s %9s %14s %12s\n", "arm", "attempts", "failed", "cut", "p50 ms", "p99 ms", "to sick >1 s", "collateral")
	for _, a := range r.Arms {
		fmt.Fprintf(p.w, "  %-12s %9d %7d %5d %9s %9s %14d %12d\n", a.Name, a.Attempts, a.Failed, a.Cut, num(a.LatencyMS.P50), num(a.LatencyMS.P99), a.ToSickAfter1s, a.CollateralEjections)
	}
	for i, why := range r.Latencies.Why {
		if i == 0 {
			fmt.Fprintf(p.w, "  %s\n", p.paint(amber, "latencies are not comparable:"))
		}
		fmt.Fprintf(p.w, "    %s\n", why)
	}
	fmt.Fprintf(p.w, "\n%s\n", p.verdict(r))
}

// unmeasured is whether o is neither held nor broken: of a run that proves nothing.
func unmeasured(r *measure.Result, o measure.Observation) bool {
	return r.Verdict == measure.Inconclusive && o.Unmeasured
}

func note(n string) string {
	if n == "" {
		return ""
	}
	return "  " + n
}

func (p *Printer) verdict(r *measure.Result) string {
	held, without := 0, 0
	for _, o := range r.Assertions {
		if o.Held {
			held++
		} else if unmeasured(r, o) {
			without++
		}
	}
	code := map[measure.Verdict]string{measure.Held: green, measure.Broken: red, measure.Inconclusive: amber}[r.Verdict]
	text := fmt.Sprintf("%s: %s, seed %d: %d of %d assertions held in %.0f s", strings.ToUpper(string(r.Verdict)), r.Scenario, r.Seed, held, len(r.Assertions), r.Finished.Sub(r.Started).Seconds())
	if without > 0 {
		text += fmt.Sprintf(", %d not measured", without)
	}
	if len(r.Reasons) > 0 {
		text += "; " + strings.Join(r.Reasons, "; ")
	}
	return p.paint(bold+";"+code, text)
}
