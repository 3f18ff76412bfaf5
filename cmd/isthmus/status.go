package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/internal/answer"
)

func newStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which services are healthy where, and what is out",
		Long: `status asks node proxies and gateways, at their admin addresses, what they know: a gateway
of the services of its own network, a node proxy of those that its workloads use, on every
network. A controller says who leads, what it has imported, and what it cannot write or follow.
In a cluster kubectl port-forward POD 15000 leads to such an address.

READY    pods that discovery has as ready
HEALTHY  those of them that take connections; ? while none of the network's gateways can be
         reached
AGE      how long ago READY, HEALTHY or OUT changed, as a node proxy heard of it; at a gateway,
         how old the newest word about one of these pods is
OUT      eight endpoints that are out, and why (-o json has all), or that no pod of the service
         is in the mesh

A row with ? is a share of a service of which nobody says anything: it is used all the same; so
is what a gateway has no node proxy's word of. A row of a node proxy with - for its network is
of a static listener whose service cannot be reached at all. Above the table are gateways that
a node proxy cannot reach, or that nobody hears, with the last error; "not ready" says why a
process is not, "line" what the kernel measured on the open TCP connections to another network's
gateways, "problem" what of its discovery is not in force or not used, or whose words it
does not believe, "warning" which policies do not do what they were written for and what leads
nowhere by its addresses. Pods of a node proxy's own node that it has seen fail come last.

Exit codes: 0 all is known and healthy, 1 something is out or unknown, 2 usage, 3 a process
could not be asked; the answers of the others are printed.`,
		Example: "  isthmus status --admin 127.20.1.2:15000\n  isthmus status -w",
		Args:    cobra.NoArgs,
	}
	a := askFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.validate(); err != nil {
			return err
		}
		return a.follow(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), a.status)
	}
	return cmd
}

func (a *asking) status(ctx context.Context) (answered, error) {
	list, failed := askAll[answer.Status](ctx, a, "/status", nil)
	nameStatus(list)
	var finding error
	for i := range list {
		if !list[i].Well() {
			finding = &exitError{code: exitFinding}
		}
	}
	text := statusText(list)
	if *a.format == "json" {
		b, err := json.MarshalIndent(list, "", "  ")
		if err != nil {
			return answered{}, exit(exitStart, err)
		}
		text = string(b) + "\n"
	}
	key := slices.Clone(list)
	for i := range key {
		key[i].Now = time.Time{}
	}
	return answered{key: statusText(key), text: text, failed: failed}, finding
}

// unguardedShown is how many pods are named that plain text reaches past their policies.
const unguardedShown = 8

// outShown is how many endpoints a row names that are out; -o json names them all.
const outShown = 8

// statusText is one table for each process, and a line for each thing that is out and
// stands in no table.
func statusText(list []answer.Status) string {
	var b strings.Builder
	for i := range list {
		writeStatus(&b, &list[i])
	}
	return b.String()
}

func writeStatus(b *strings.Builder, s *answer.Status) {
	fmt.Fprintf(b, "%s on network %s", s.Process, s.Network)
	if s.Group != "" {
		fmt.Fprintf(b, ", group %s", plain(s.Group))
	}
	if s.Version != "" {
		fmt.Fprintf(b, ", version %s", plain(s.Version))
	}
	b.WriteString("\n")
	for _, p := range s.Pending {
		fmt.Fprintf(b, "not ready: %s\n", plainLines(p))
	}
	if s.Detached {
		fmt.Fprintf(b, "no health stream to a gateway of network %s\n", s.Network)
	}
	for _, g := range s.Gateways {
		fmt.Fprintf(b, "gateway %s of network %s out (%s, %s%s)", plain(g.Name), plain(g.Network), orNothing(g.Reason), age(s.Now, g.Since), asked(s.Now, g.Until))
		if g.Error != "" {
			fmt.Fprintf(b, ": %s", plain(g.Error))
		}
		b.WriteString("\n")
	}
	for _, l := range s.Lines {
		if !s.Now.IsZero() { // its numbers change all the time
			fmt.Fprintf(b, "line to %s: %s\n", plain(l.Network), plain(l.String()))
		}
	}
	for _, h := range s.Heard {
		if h.Quiet() {
			fmt.Fprintf(b, "gateway %s of network %s %s (last word %s ago)\n", plain(h.Gateway), plain(h.Network), h.Phase, age(s.Now, h.At))
		}
	}
	writeKeys(b, s)
	for _, p := range s.Problems {
		fmt.Fprintf(b, "problem: %s\n", plainLines(p))
	}
	for _, w := range s.Warnings {
		fmt.Fprintf(b, "warning: %s\n", plainLines(w))
	}
	for _, u := range s.Unrouted {
		fmt.Fprintf(b, "warning: %s\n", plainLines(u))
	}
	for _, u := range s.Unguarded[:min(len(s.Unguarded), unguardedShown)] {
		fmt.Fprintf(b, "warning: %s\n", plainLines(u))
	}
	if more := len(s.Unguarded) - unguardedShown; more > 0 {
		fmt.Fprintf(b, "warning: plain text goes past the policies of %d more pods (-o json has all)\n", more)
	}
	if s.Controller != nil {
		writeController(b, s.Now, s.Controller)
		return
	}
	if len(s.Services) == 0 && strings.HasPrefix(s.Process, "gateway ") { // it lists all that its network has
		fmt.Fprintf(b, "no pod of network %s serves anything\n", s.Network)
		return
	}
	if len(s.Services) == 0 && len(s.Local) == 0 {
		b.WriteString(unused(s))
		return
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NETWORK\tSERVICE\tPORT\tREADY\tHEALTHY\tAGE\tOUT")
	for _, r := range s.Services {
		if r.Why != "" {
			fmt.Fprintf(w, "-\t%s\t%d\t-\t-\t-\t%s\n", plain(r.Service), r.Port, plain(r.Why))
			continue
		}
		if r.Unknown {
			why := plain(unreachedText(r))
			if failed := failedText(r, s.Now); failed != "" {
				why = strings.TrimSpace(why + " (" + plain(failed) + ")")
			}
			if why == "" {
				why = "nothing is known of it: used all the same"
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t?\t?\t-\t%s\n", plain(r.Network), plain(r.Service), r.Port, why)
			continue
		}
		var out []string
		if r.NoPod {
			out = append(out, "no pod in the mesh")
		}
		if r.Draining {
			out = append(out, "all of it (draining)")
		}
		healthy := strconv.FormatUint(uint64(r.Healthy), 10)
		if r.Unreached != "" {
			healthy, out = "?", append(out, plain(unreachedText(r)))
		}
		if failed := failedText(r, s.Now); failed != "" {
			out = append(out, "("+plain(failed)+")")
		}
		if !r.Stale.IsZero() {
			out = append(out, fmt.Sprintf("(last word %s ago)", age(s.Now, r.Stale)))
		}
		for _, o := range r.Out[:min(len(r.Out), outShown)] {
			out = append(out, outText(s.Now, o))
		}
		if more := len(r.Out) - outShown; more > 0 {
			out = append(out, fmt.Sprintf("+%d more", more))
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", plain(r.Network), plain(r.Service), r.Port, r.Ready, healthy, age(s.Now, r.Changed), strings.Join(out, ", "))
	}
	for _, o := range s.Local {
		fmt.Fprintf(w, "%s\t(a pod of this node)\t-\t-\t-\t-\t%s\n", s.Network, outText(s.Now, o))
	}
	w.Flush()
}

// unreachedText says that no gateway of r can be reached; empty: one can.
func unreachedText(r answer.Row) string {
	if r.Unreached == "" {
		return ""
	}
	return fmt.Sprintf("all of it (none of its gateways can be reached: %s)", r.Unreached)
}

// failedText says which attempts at r failed; empty: none to speak of.
func failedText(r answer.Row, now time.Time) string {
	if r.Failed == nil {
		return ""
	}
	return r.Failed.Sentence(now)
}

// writeKeys says how far the rotation of the network's key is, while it lasts.
func writeKeys(b *strings.Builder, s *answer.Status) {
	if s.RotationNext != "" {
		fmt.Fprintf(b, "key of network %s: %s\n", s.Network, s.RotationNext)
	}
	for _, k := range s.Known {
		var said []string
		for _, f := range k.Fingerprints {
			said = append(said, f+" ("+certifies(s, k.Network, f)+")")
		}
		fmt.Fprintf(b, "keys believed of network %s: %s\n", plain(k.Network), strings.Join(said, ", "))
	}
	if len(s.Keys) < 2 {
		return
	}
	var said []string
	for _, k := range s.Keys {
		use := "listed"
		if k.Signs {
			use = "signs"
		}
		said = append(said, k.Fingerprint+" "+use)
	}
	fmt.Fprintf(b, "keys of network %s: %s\n", s.Network, strings.Join(said, ", "))
}

// certifies names the gateways of network that are heard and certified by a key: those
// that are silent or lapsed with that word, unless another process of the gateway that the
// key has certified is live. What is pending or ignored may have ended long ago.
func certifies(s *answer.Status, network, fingerprint string) string {
	live, quiet := map[string]bool{}, map[string]string{}
	for _, h := range s.Heard {
		switch name := plain(h.Gateway); {
		case h.Network != network || h.Key != fingerprint:
		case h.Phase == "live":
			live[name] = true
		case h.Quiet():
			quiet[name] = h.Phase
		}
	}
	names := slices.Collect(maps.Keys(live))
	for name, phase := range quiet {
		if !live[name] {
			names = append(names, name+" "+phase)
		}
	}
	if len(names) == 0 {
		return "nobody who is heard"
	}
	slices.Sort(names)
	return "certifies " + strings.Join(names, ", ")
}

func outText(now time.Time, o standing.Out) string {
	return fmt.Sprintf("%s (%s, %s, by %s%s)", plain(cmp.Or(o.Pod, o.Endpoint)), orNothing(o.Reason), age(now, o.Since), plain(o.Witness), asked(now, o.Until))
}

// asked is when that which is out until a time is asked again.
func asked(now, until time.Time) string {
	if now.IsZero() || !until.After(now) {
		return ""
	}
	return fmt.Sprintf(", asked again in %s at the latest", until.Sub(now).Round(time.Second))
}

func orNothing(s string) string {
	if s == "" {
		return "-"
	}
	return plain(s)
}

// plain returns s, quoted if it has anything that is no plain text: other nodes and
// networks have written it, and a terminal obeys escapes.
func plain(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) < 0 {
		return s
	}
	return strconv.QuoteToASCII(s)
}

// plainLines is plain for what has several lines, such as a file with several mistakes.
// All but the first are indented, so that none passes for a line of the table.
func plainLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	for i, l := range lines {
		lines[i] = plain(l)
	}
	return strings.Join(lines, "\n    ")
}

func age(now, at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return standing.Age(now.Sub(at))
}

// unused says that no service is used yet, and by which pods one could be.
func unused(s *answer.Status) string {
	switch {
	case s.Releasing:
		return "nothing is captured any more (capture.scope: release): rules of this mesh are taken out of the pods of this node while this process runs, and what they open goes as without a mesh\n"
	case s.Captured == nil:
		return "no pod of this node uses a service, so nothing is known of any\n"
	case *s.Captured == 0 && len(s.Uncaptured) > 0:
		return "no pod of this node is captured, for the problems above, and none uses a service\n"
	case *s.Captured == 0:
		return "no pod of this node is captured, and none uses a service: those of the mesh are, when they run here; hostNetwork pods never are\n"
	case s.Nameless >= *s.Captured:
		return fmt.Sprintf("captured pods of this node: %d; none has asked for a service yet, and names are not answered in them, for they have no resolver that is captured: call a virtual address from such a pod\n", *s.Captured)
	case s.Nameless > 0:
		return fmt.Sprintf("captured pods of this node: %d, in %d of which names are not answered, for these have no resolver that is captured; none has asked for a service yet: call one from one of the others, as by curl http://SERVICE.NAMESPACE.mesh.internal/, or a virtual address from any\n", *s.Captured, s.Nameless)
	}
	return fmt.Sprintf("captured pods of this node: %d; none has asked for a service yet: call one from such a pod, as by curl http://SERVICE.NAMESPACE.mesh.internal/\n", *s.Captured)
}
