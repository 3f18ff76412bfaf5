package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/lines"
)

// maxSkew is how far a process's clock may be from the one here.
const maxSkew = 5 * time.Second

// process checks one by its admin address. An error is that it could not be asked. Remedies are
// filled for p.
func (c *checkup) process(ctx context.Context, address string, p *place) error {
	var s answer.Status
	began := time.Now()
	err := ask(ctx, address, "/status", nil, &s)
	if err != nil {
		c.add(checkAsked, address, checkBad, errorText(err))
		return err
	}
	where := fmt.Sprintf("%s on network %s (%s)", s.Process, s.Network, address)
	c.at(where, p)
	c.processOf(where, &s, began, time.Now())
	if !strings.HasPrefix(s.Process, "gateway") {
		return nil
	}
	var r answer.Reach
	var query url.Values
	if c.path != "" && c.path != s.Network {
		query = url.Values{"path": {c.path}}
	}
	if err := askFor(ctx, reachLimit, address, "/reach", query, &r); err != nil {
		c.add(checkTunnels, where, checkWarning, errorText(err))
		return nil
	}
	c.reached(where, &r)
	return nil
}

// reachLimit bounds how long a gateway dials others.
const reachLimit = 30 * time.Second

// reached checks what came of a gateway's tunnels to those of each other network: of one
// that is reached at some of its addresses the others are a warning, and so is one that could not
// be dialed.
func (c *checkup) reached(where string, r *answer.Reach) {
	networks, well, failed := []string{}, map[string]bool{}, map[string]bool{}
	for _, t := range r.Tried {
		if !slices.Contains(networks, t.Network) {
			networks = append(networks, t.Network)
		}
		well[t.Network] = well[t.Network] || t.Error == ""
		failed[t.Network] = failed[t.Network] || t.Error != "" && t.Address != "" && !t.Undialled
	}
	for _, n := range networks {
		var wrong, reached []string
		level := checkBad
		if well[n] || !failed[n] {
			level = checkWarning
		}
		for _, t := range r.Tried {
			switch {
			case t.Network != n:
			case t.Address == "":
				wrong = append(wrong, fmt.Sprintf("network %q: %s", n, t.Error))
			case t.Error != "":
				wrong = append(wrong, fmt.Sprintf("network %q at %s: %s", n, t.Address, t.Error))
			default:
				reached = append(reached, fmt.Sprintf("%s %s at %s in %.1f ms, certificate of %s until %s", n, t.Gateway, t.Address, t.RTTMS, t.Identity, t.Expires.UTC().Format(time.RFC3339)))
			}
		}
		var after []checkCode
		if slices.ContainsFunc(r.Tried, func(t answer.Tried) bool {
			return t.Network == n && t.Error != "" && t.Path != nil && t.Path.MaxSegment > 0
		}) {
			after = append(after, checkPaths)
		}
		c.add(checkTunnels, where, level, items(wrong), after...)
		c.all[len(c.all)-1].Seen = reached
		c.paths(where, n, r.Tried)
		c.udp(where, n, r.Tried)
	}
}

// paths checks the measured paths from a gateway to those of network n: dropped packets fail connections, lost ones slow
// them down.
func (c *checkup) paths(where, n string, tried []answer.Tried) {
	var wrong, remedies, seen []string
	level := checkWarning
	for _, t := range tried {
		if t.Network != n || t.Path == nil {
			if t.Network == n && t.PathError != "" && t.Error == "" {
				seen = append(seen, fmt.Sprintf("%s at %s: not measured: %s", n, t.Address, t.PathError))
			}
			continue
		}
		seen = append(seen, fmt.Sprintf("%s at %s: %s", n, t.Address, t.Path))
		if t.Path.MaxSegment > 0 {
			level = checkBad
		}
		for _, f := range t.Path.Faults() {
			wrong = append(wrong, fmt.Sprintf("network %q at %s: %s", n, t.Address, f.Found))
			remedies = append(remedies, f.Remedy)
		}
	}
	if len(seen) == 0 {
		return // checkTunnels has why
	}
	c.remedied(checkPaths, where, level, items(wrong), items(append(remedies, checkPaths.remedy)))
	c.all[len(c.all)-1].Seen = seen
}

// udp checks whether QUIC connects from a gateway to those of network n, if it has lines.transport quic or auto for it. With
// quic node proxies have no other way.
func (c *checkup) udp(where, n string, tried []answer.Tried) {
	var wrong, remedies, seen []string
	alone, passes := false, false // QUIC is the only transport; it connects to some address
	for _, t := range tried {
		if t.Network != n || t.Transport == "" || t.Error != "" {
			continue
		}
		alone = alone || t.Transport == lines.QUIC
		for _, f := range t.UDPFaults() {
			wrong = append(wrong, fmt.Sprintf("network %q at %s: %s", n, t.Address, f.Found))
			remedies = append(remedies, f.Remedy)
		}
		for _, u := range t.UDP {
			if u.Failure == "" {
				passes = true
				seen = append(seen, fmt.Sprintf("%s at %s: %s", n, t.Address, u))
			}
		}
		if t.UDPError != "" || len(t.UDP) == 0 {
			seen = append(seen, fmt.Sprintf("%s at %s: UDP not checked: %s", n, t.Address, cmp.Or(t.UDPError, t.PathError)))
		}
	}
	if len(wrong)+len(seen) == 0 {
		return
	}
	level := checkWarning
	if alone && !passes {
		level = checkBad
	}
	c.remedied(checkUDP, where, level, items(wrong), items(append(remedies, checkUDP.remedy)))
	c.all[len(c.all)-1].Seen = seen
}

// items are what is wrong with several objects, sorted, each once: further lines of one are
// indented.
func items(list []string) string {
	list = slices.Clone(list)
	for i, s := range list {
		list[i] = strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n  ")
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), "\n")
}

// processOf checks what a process says of itself, which was asked between two instants.
func (c *checkup) processOf(where string, s *answer.Status, began, ended time.Time) {
	c.add(checkAsked, where, checkBad, "")
	c.add(checkReady, where, checkBad, items(s.Pending))
	skew := time.Duration(0)
	if s.Now.Before(began) {
		skew = began.Sub(s.Now)
	} else if s.Now.After(ended) {
		skew = s.Now.Sub(ended)
	}
	found := ""
	if skew > maxSkew {
		found = fmt.Sprintf("it differs by %v: it says %s, here it is %s", skew.Round(time.Second), s.Now.UTC().Format(time.RFC3339), ended.UTC().Format(time.RFC3339))
	}
	c.add(checkClock, where, checkBad, found)
	if s.Controller != nil { // it needs neither other networks nor pods, and most of its problems are those of objects
		c.remedied(checkProblems, where, checkWarning, items(s.Problems), problemRemedy(s.Problems))
		return
	}
	c.remedied(checkProblems, where, checkBad, items(s.Problems), problemRemedy(s.Problems))
	c.add(checkEndpoints, where, checkWarning, items(withoutEndpoints(s)))
	c.add(checkSelects, where, checkWarning, items(s.Warnings))
	c.add(checkRouted, where, checkWarning, items(s.Unrouted))
	var silent []string
	for _, k := range s.Known {
		if k.Network != s.Network && !slices.ContainsFunc(s.Heard, func(h answer.Heard) bool { return h.Network == k.Network && h.Phase == "live" }) {
			silent = append(silent, fmt.Sprintf("no gateway of network %q is heard", k.Network))
		}
	}
	if len(s.Known) > 0 {
		c.add(checkHeard, where, checkBad, items(silent))
	}
	if strings.HasPrefix(s.Process, "node proxy") {
		level, lines := checkWarning, []string(nil)
		if s.Detached {
			level, lines = checkBad, []string{"it has none"}
		}
		for _, g := range s.Gateways {
			if g.Network == s.Network {
				lines = append(lines, fmt.Sprintf("gateway %s: %s", g.Name, cmp.Or(g.Error, orNothing(g.Reason))))
			}
		}
		c.add(checkAttached, where, level, strings.Join(lines, "\n"))
		c.add(checkGuarded, where, checkWarning, items(s.Unguarded))
		c.add(checkServed, where, checkBad, items(inVain(s)))
	}
	var out []string
	for _, g := range s.Gateways {
		if g.Network == s.Network {
			continue // that is checkAttached
		}
		line := fmt.Sprintf("gateway %s of network %s is out (%s)", g.Name, g.Network, orNothing(g.Reason))
		if g.Error != "" {
			line += ": " + g.Error
		}
		out = append(out, line)
	}
	c.add(checkReachable, where, checkBad, items(out))
}

// remedy matches the remedy of a problem: what follows a colon and begins with a verb. Verbs that
// are nouns as well have an article behind them.
var remedy = regexp.MustCompile(`: ((?:(?:name|list|change|check|issue|use|set) (?:a|an|one|the|it|its|that|this|them)|did you mean|add|allow|ask|chmod|choose|close|compare|correct|create|delete|fix|give|grant|install|leave|let|lower|make|mend|mount|move|put|raise|remove|rename|renew|replace|restart|restore|run|set|start|stop|turn|unset|update|upgrade|wait|write) \S.*)$`)

// problemRemedy is what to do about problems: the remedies that they name, and where the others
// are described.
func problemRemedy(problems []string) string {
	var list []string
	for _, p := range problems {
		if m := remedy.FindStringSubmatch(strings.TrimSpace(p)); m != nil && !slices.Contains(list, m[1]) {
			list = append(list, m[1])
		}
	}
	slices.Sort(list)
	return strings.Join(append(list, checkProblems.remedy), "\n")
}

// withoutEndpoints are the services without a healthy endpoint: on one network where pods are
// ready, and on all where none is. What is unknown, unreachable or draining is none of them.
func withoutEndpoints(s *answer.Status) (list []string) {
	type port struct {
		service string
		port    uint16
	}
	served, empty := map[port]bool{}, []port{}
	for _, r := range s.Services {
		p := port{r.Service, r.Port}
		switch {
		case r.Why != "":
		case r.Unknown, r.Unreached != "", r.Draining, r.Healthy > 0:
			served[p] = true
		case r.Ready > 0:
			served[p] = true // there is a line
			list = append(list, fmt.Sprintf("%s:%d on network %s: none of %d ready endpoints is healthy", r.Service, r.Port, r.Network, r.Ready))
		default:
			empty = append(empty, p)
		}
	}
	for _, p := range empty {
		if !served[p] {
			list = append(list, fmt.Sprintf("%s:%d: no endpoint is ready", p.service, p.port))
		}
	}
	return list
}

// inVain are the services to whose share of a network no connection of a node proxy's pods comes, though nobody there need
// be ill: that some or all pods of a service are is what status says.
func inVain(s *answer.Status) (list []string) {
	for _, r := range s.Services {
		name := fmt.Sprintf("%s:%d", r.Service, r.Port)
		if r.Why != "" {
			list = append(list, name+": "+r.Why)
			continue
		}
		for _, why := range []string{unreachedText(r), failedText(r, s.Now)} {
			if why != "" {
				list = append(list, fmt.Sprintf("%s on network %s: %s", name, r.Network, why))
			}
		}
	}
	return list
}
