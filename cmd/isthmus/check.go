package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newCheckCommand() *cobra.Command {
	var contexts, admin []string
	var path string
	var files offline
	var wait time.Duration
	var strict bool
	var k kubectl
	cmd := &cobra.Command{
		Use:   "check [--contexts A,B] [--admin ADDRESS…] [--config KIND=FILE…] [--values FILE…]",
		Short: "Check clusters, what they know of each other, and processes",
		Long: `check looks at clusters by their contexts (objects, certificates, expected against
actual pods, addresses, what each knows of the others) and at processes by their admin
addresses (ready, clock, problems, whom they hear: a network that is heard has proved itself
over a connection between its gateways and these). A gateway is asked to open a tunnel to
those of each other network at each address, now, and to measure the path: round trip, jitter,
lost packets, and the largest packets that pass. If its lines.transport for that network is quic
or auto, it also tries QUIC, over UDP. A link is seen in both directions when
gateways of both sides are asked. With --path NETWORK it also measures two seconds of
throughput to that network. Of a cluster kubectl forwards to one, if it can. It changes
nothing.

Without a cluster and a process it checks files: configurations by the programs that read
them (KIND is gateway, nodeproxy or controller; each is taken from beside isthmus, else from
PATH), and values of the chart by helm, which renders it, and by the programs, which read the
configurations that come out; what was not checked is said.

✓ is as it should be, ! is not wrong yet, ✗ is wrong; each has a code that docs/operations.md
explains, and a remedy. With --wait it looks again until nothing is wrong or the time is over,
and says on standard error what it waits for, whenever that changes. With --strict what has !
counts as wrong, for both: policies that are left out of a discovery file, say, keep no program
from starting by it.

Exit codes: 0 nothing is wrong, 1 something is (✗; with --strict ! too), 2 usage, 3 a cluster
or a process could not be asked; the checks of the others are printed.`,
		Example: "  isthmus check --contexts east,west\n  kubectl --context east -n isthmus-system port-forward deploy/isthmus-gateway 15000 &\n  isthmus check --admin 127.0.0.1:15000 --wait 1m\n  isthmus check --contexts east,west --path west\n  isthmus check --config gateway=gateway.yaml --values my-values.yaml\n  isthmus check --strict --config nodeproxy=nodeproxy.yaml",
		Args:    cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringSliceVar(&contexts, "contexts", nil, "contexts of clusters, with commas")
	f.StringSliceVar(&admin, "admin", nil, "admin addresses of gateways and node proxies, with commas")
	f.StringVar(&path, "path", "", "network that each gateway measures two seconds of throughput to, on one connection")
	f.StringArrayVar(&files.configs, "config", nil, "KIND=FILE: configuration of a gateway, nodeproxy or controller; several times")
	f.StringArrayVar(&files.values, "values", nil, "values of the chart, which later files override as with helm; several times")
	f.StringVar(&files.chart, "chart", "helm/isthmus", "chart that --values is for")
	f.StringVar(&files.helm, "helm", "helm", "program that knows charts")
	f.DurationVar(&wait, "wait", 0, "look again until nothing is wrong, for so long")
	f.BoolVar(&strict, "strict", false, "exit with 1, and with --wait look again, for what is not wrong yet (!) too")
	kubectlFlags(cmd, &k)
	format, valid := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(valid(), (&asking{admin: admin, check: func() error { return nil }}).validate()); err != nil {
			return exit(exitUsage, err)
		}
		if len(contexts)+len(admin)+len(files.configs)+len(files.values) == 0 {
			return exit(exitUsage, errors.New("name what to check: --contexts, --admin, --config or --values"))
		}
		if path != "" && len(contexts)+len(admin) == 0 {
			return exit(exitUsage, errors.New("--path measures from gateways: name them with --contexts or --admin"))
		}
		contexts, err := contextList(contexts)
		if err != nil {
			return err
		}
		if err := files.validate(); err != nil {
			return exit(exitUsage, err)
		}
		ctx, until, said := cmd.Context(), time.Now().Add(wait), ""
		for {
			c, err := checkAll(ctx, k, contexts, admin, files, path)
			c.strict = strict
			if err == nil && c.well() || time.Now().After(until) || ctx.Err() != nil {
				if shown := showChecks(cmd.OutOrStdout(), c, *format); shown != nil {
					return exit(exitStart, shown)
				}
				if err == nil && !c.well() {
					err = &exitError{code: exitFinding}
				}
				return err
			}
			if now := waitsFor(c, err); now != said {
				fmt.Fprintf(cmd.ErrOrStderr(), "isthmus: waiting for %s\n", now)
				said = now
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
	return cmd
}

// waitsFor is what keeps check --wait from ending.
func waitsFor(c *checkup, err error) string {
	var list []string
	if wrong := c.wrong(); wrong != "" {
		list = append(list, wrong)
	}
	if err != nil {
		list = append(list, "an answer: "+strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return strings.Join(list, ", and for ")
}

// checkAll looks at everything once; the error is of what could not be asked.
func checkAll(ctx context.Context, k kubectl, contexts, admin []string, files offline, path string) (*checkup, error) {
	c := &checkup{lookup: net.DefaultResolver.LookupHost, path: path}
	errs := c.files(ctx, files)
	var clusters []*checkedCluster
	for _, name := range contexts {
		x, err := c.cluster(ctx, k.of(name), files.chart)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		clusters = append(clusters, x)
		c.processes(ctx, k.of(name), x.where)
		c.allowed(x.where)
	}
	for _, a := range clusters {
		for _, b := range clusters {
			if a != b {
				c.pair(ctx, a, b)
			}
		}
	}
	for _, address := range admin {
		if err := c.process(ctx, address, &place{admin: address}); err != nil {
			errs = append(errs, err)
		}
	}
	c.sort()
	if err := errors.Join(errs...); err != nil {
		return c, exit(exitStart, err)
	}
	return c, nil
}

// showChecks prints what was checked; a group for each place. What others have written has as
// many lines as it had, none of which begins where a check does.
func showChecks(w io.Writer, c *checkup, format string) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(c.all)
	}
	var b strings.Builder
	last := ""
	for _, x := range c.all {
		if x.Where != last {
			fmt.Fprintf(&b, "%s\n", plain(x.Where))
			last = x.Where
		}
		mark := map[string]string{checkWell: "✓", checkWarning: "!", checkBad: "✗"}[x.Level]
		fmt.Fprintf(&b, "  %s %s %s\n", mark, x.Code, x.What)
		for _, line := range x.Seen {
			fmt.Fprintf(&b, "      %s\n", plain(line))
		}
		for line := range strings.Lines(x.Found) {
			fmt.Fprintf(&b, "      %s\n", plain(strings.TrimRight(line, "\n")))
		}
		for line := range strings.Lines(x.Remedy) {
			fmt.Fprintf(&b, "      → %s\n", plain(strings.TrimRight(line, "\n")))
		}
		if x.Follows != "" {
			fmt.Fprintf(&b, "      ↳ follows from %s\n", x.Follows)
		}
	}
	fmt.Fprintf(&b, "%d ✓, %d !, %d ✗\n", c.count(checkWell), c.count(checkWarning), c.count(checkBad))
	_, err := io.WriteString(w, b.String())
	return err
}
