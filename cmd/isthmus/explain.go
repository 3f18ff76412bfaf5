package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/internal/answer"
)

func newExplainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain SOURCE DEST:PORT",
		Short: "Say where connections go, and why not elsewhere",
		Long: `explain asks node proxies and gateways why each candidate for a connection of the
workload SOURCE to DEST:PORT is in or out. SOURCE is namespace/name of a pod, or the UID
of a workload, as the discovery file has it; DEST is the host name of a service.

Name the node proxy of SOURCE with --admin, and a gateway of the destination's network too,
to see where they believe differently. A gateway of another network does not carry the
service. The node proxy of a pod of the destination says which policy decides, also where
SOURCE is a workload of another node that it knows, or a SPIFFE ID. In a cluster kubectl port-forward POD 15000 leads to an admin address.

Exit codes: 0 somebody healthy takes connections, 1 nobody does, the last attempts failed,
policies deny or processes differ, 2 usage, 3 a process could not be asked; the answers of the others are
printed.`,
		Example: "  isthmus explain east/default/shop-1 hello.default.svc.cluster.local:80\n  isthmus explain east/default/shop-1 hello.default.svc.cluster.local:80 --admin 127.20.1.2:15000,127.20.2.1:15000",
		Args:    sourceAndDestination,
	}
	a := askFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.validate(); err != nil {
			return err
		}
		return a.follow(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), func(ctx context.Context) (answered, error) { return a.explain(ctx, args[0], args[1]) })
	}
	return cmd
}

// sourceAndDestination wants both, in this order.
func sourceAndDestination(cmd *cobra.Command, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("%s takes 2 arguments, SOURCE and DEST:PORT, such as demo/shop-1 hello.demo.svc.cluster.local:80; there are %d", cmd.Name(), len(args))
	}
	return nil
}

// explained is what `explain -o json` prints.
type explained struct {
	Processes   []answer.Explanation `json:"processes"`
	Differences []string             `json:"differences"`
}

func (a *asking) explain(ctx context.Context, source, destination string) (answered, error) {
	x := explained{Differences: []string{}}
	var failed []error
	x.Processes, failed = askAll[answer.Explanation](ctx, a, "/explain", url.Values{"source": {source}, "destination": {destination}})
	nameExplained(x.Processes)
	for i := range x.Processes {
		for j := range i {
			x.Differences = append(x.Differences, differences(x.Processes[j], x.Processes[i])...)
		}
	}
	finding, text := x.finding(), x.text()
	key := x
	key.Processes = slices.Clone(x.Processes)
	for i := range key.Processes {
		key.Processes[i].Now = time.Time{}
	}
	if *a.format == "json" {
		b, err := json.MarshalIndent(x, "", "  ")
		if err != nil {
			return answered{}, exit(exitStart, err)
		}
		text = string(b) + "\n"
	}
	return answered{key: key.text(), text: text, failed: failed}, finding
}

// finding is that connections fail by somebody's word, that nobody asked carries them, or
// that processes differ.
func (x *explained) finding() error {
	asked := 0
	for i := range x.Processes {
		e := &x.Processes[i]
		if e.NotCarried {
			continue
		}
		if asked++; !e.Serves() {
			return &exitError{code: exitFinding}
		}
	}
	if asked == 0 || len(x.Differences) > 0 {
		return &exitError{code: exitFinding}
	}
	return nil
}

func (x *explained) text() string {
	var b strings.Builder
	for _, e := range x.Processes {
		fmt.Fprintf(&b, "%s on network %s:\n", e.Process, e.Network)
		if e.NotCarried {
			b.WriteString("  does not carry this service\n")
		} else if e.PassedOn != "" {
			fmt.Fprintf(&b, "  not carried by the mesh, and left to the kernel: %s\n", plain(e.PassedOn))
		} else if e.NotCaptured != "" {
			fmt.Fprintf(&b, "  not captured, and goes as without a mesh: %s\n", plain(e.NotCaptured))
		} else if e.Refused != "" {
			fmt.Fprintf(&b, "  refused: %s\n", plain(e.Refused))
		}
		if e.Discovery != nil {
			fmt.Fprintf(&b, "  discovery: %s\n", plain(e.Discovery.Sentence(e.Now)))
		}
		if e.Unasked {
			b.WriteString("  nothing is asked of this service yet: the first connection will ask\n")
		}
		for _, p := range e.Permissions {
			fmt.Fprintf(&b, "  %s\n", plain(p.Sentence()))
		}
		if len(e.Candidates) > 0 && !slices.ContainsFunc(e.Candidates, answer.Verdict.Well) {
			b.WriteString("  nobody is known to be healthy: those below are used although out\n")
		}
		for _, v := range e.Candidates {
			fmt.Fprintf(&b, "  %s\n", plain(v.Sentence(e.Now)))
			for _, g := range v.Gateways {
				if v.Failed != nil && g.Failed != nil && g.Failed.Error == v.Failed.Error { // the line above has it
					f := *g.Failed
					f.Error, g.Failed = "", &f
				}
				if f := g.Failed; f != nil && slices.ContainsFunc(g.Causes, func(c standing.Cause) bool { return c.Error != "" && strings.HasSuffix(f.Error, c.Error) }) { // the cause has it
					x := *f
					x.Error, g.Failed = "", &x
				}
				fmt.Fprintf(&b, "    by gateway %s\n", plain(g.Sentence(e.Now)))
			}
			for _, c := range v.Endpoints {
				name := cmp.Or(c.Pod, c.Endpoint)
				if c.Port != 0 {
					name = fmt.Sprintf("%s:%d", name, c.Port)
				}
				fmt.Fprintf(&b, "    %s out%s: %s\n", plain(name), since(e.Now, c.Since), plain(c.Sentence(e.Now)))
			}
		}
	}
	for _, d := range x.Differences {
		fmt.Fprintf(&b, "difference: %s\n", plain(d))
	}
	return b.String()
}

func since(now, at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return " for " + standing.Age(now.Sub(at))
}

// differences lists the pods on which a and b differ. What a process holds
// against pods behind gateways, it names.
func differences(a, b answer.Explanation) (list []string) {
	if a.Unasked || b.Unasked { // it believes nothing yet
		return nil
	}
	mine, theirs := beliefs(a), beliefs(b)
	for name, in := range mine {
		if other, known := theirs[name]; known && in != other {
			list = append(list, difference(name, in, a, b))
		}
	}
	if a.Network != b.Network {
		for name, in := range theirs {
			if believed, known := behind(a, b.Network, name); known && believed != in {
				list = append(list, difference(name, believed, a, b))
			}
		}
		for name, in := range mine {
			if believed, known := behind(b, a.Network, name); known && believed != in {
				list = append(list, difference(name, in, a, b))
			}
		}
	}
	slices.Sort(list)
	return list
}

func difference(name string, in bool, a, b answer.Explanation) string {
	return fmt.Sprintf("%s is %s by %s, and %s by %s", called(name, a, b), inOut(in), a.Process, inOut(!in), b.Process)
}

// called is the name of a pod whose UID one of e has.
func called(uid string, e ...answer.Explanation) string {
	for _, x := range e {
		for _, v := range x.Candidates {
			if v.Kind == "pod" && v.Name == uid && v.Pod != "" {
				return v.Pod
			}
		}
	}
	return uid
}

// behind is whether e believes in a pod behind the gateways of network.
func behind(e answer.Explanation, network, pod string) (in, known bool) {
	for _, v := range e.Candidates {
		if v.Kind == "share" && v.Name == network {
			return !slices.ContainsFunc(v.Endpoints, func(c standing.Cause) bool { return c.Endpoint == pod }), true
		}
	}
	return false, false
}

// beliefs are the pods of e that nothing but distance is held against, and the
// others.
func beliefs(e answer.Explanation) map[string]bool {
	out := map[string]bool{}
	for _, v := range e.Candidates {
		if v.Kind == "pod" {
			out[v.Name] = !slices.ContainsFunc(v.Causes, func(c standing.Cause) bool { return c.Word != standing.HeldWeak && c.Word != standing.HeldFarther })
		}
	}
	return out
}

func inOut(in bool) string {
	if in {
		return "in"
	}
	return "out"
}
