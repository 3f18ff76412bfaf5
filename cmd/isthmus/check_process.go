package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/answer"
)

// maxSkew is how far a process's clock may be from the one here.
const maxSkew = 5 * time.Second

// process checks one by its admin address. An error is that it could not be asked.
func (c *checkup) process(ctx context.Context, address string) error {
	var s answer.Status
	began := time.Now()
	err := ask(ctx, address, "/status", nil, &s)
	if err != nil {
		c.add(checkAsked, address, checkBad, errorText(err))
		return err
	}
	where := fmt.Sprintf("%s on network %s (%s)", s.Process, s.Network, address)
	c.processOf(where, &s, began, time.Now())
	if !strings.HasPrefix(s.Process, "gateway") {
		return nil
	}
	var r answer.Reach
	if err := askFor(ctx, reachLimit, address, "/reach", nil, &r); err != nil {
		c.add(checkTunnels, where, checkWarning, errorText(err))
		return nil
	}
	c.reached(where, &r)
	return nil
}

// reachLimit bounds how long a gateway dials others.
const reachLimit = 30 * time.Second

// reached checks what came of a gateway's tunnels to those of each other network: of one
// that is reached at some of its addresses the others are a warning.
func (c *checkup) reached(where string, r *answer.Reach) {
	networks, well := []string{}, map[string]bool{}
	for _, t := range r.Tried {
		if !slices.Contains(networks, t.Network) {
			networks = append(networks, t.Network)
		}
		well[t.Network] = well[t.Network] || t.Error == ""
	}
	for _, n := range networks {
		var wrong, reached []string
		level := checkBad
		if well[n] {
			level = checkWarning
		}
		for _, t := range r.Tried {
			switch {
			case t.Network != n:
			case t.Address == "":
				level = checkWarning
				wrong = append(wrong, fmt.Sprintf("network %q: %s", n, t.Error))
			case t.Error != "":
				wrong = append(wrong, fmt.Sprintf("network %q at %s: %s", n, t.Address, t.Error))
			default:
				reached = append(reached, fmt.Sprintf("%s %s at %s in %.1f ms, certificate of %s until %s", n, t.Gateway, t.Address, t.RTTMS, t.Identity, t.Expires.UTC().Format(time.RFC3339)))
			}
		}
		c.add(checkTunnels, where, level, strings.Join(wrong, "\n"))
		c.all[len(c.all)-1].Seen = reached
	}
}

// processOf checks what a process says of itself, which was asked between two instants.
func (c *checkup) processOf(where string, s *answer.Status, began, ended time.Time) {
	c.add(checkAsked, where, checkBad, "")
	c.add(checkReady, where, checkBad, strings.Join(s.Pending, "\n"))
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
	c.add(checkProblems, where, checkBad, strings.Join(s.Problems, "\n"))
	var silent []string
	for _, k := range s.Known {
		if k.Network != s.Network && !slices.ContainsFunc(s.Heard, func(h answer.Heard) bool { return h.Network == k.Network && h.Phase == "live" }) {
			silent = append(silent, fmt.Sprintf("no gateway of network %q is heard", k.Network))
		}
	}
	if len(s.Known) > 0 {
		c.add(checkHeard, where, checkBad, strings.Join(silent, "\n"))
	}
	if strings.HasPrefix(s.Process, "node proxy") {
		found = ""
		if s.Detached {
			found = "it has none"
		}
		c.add(checkAttached, where, checkBad, found)
	}
	var out []string
	for _, g := range s.Gateways {
		out = append(out, fmt.Sprintf("gateway %s of network %s: %s %s", g.Name, g.Network, orNothing(g.Reason), g.Error))
	}
	c.add(checkReachable, where, checkBad, strings.Join(out, "\n"))
}
