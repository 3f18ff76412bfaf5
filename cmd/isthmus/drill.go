package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/isthmus-mesh/isthmus/drill/lab"
	"github.com/isthmus-mesh/isthmus/drill/measure"
	"github.com/isthmus-mesh/isthmus/drill/report"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// exitInterrupted is what a shell says for SIGINT; everything was cleaned up.
const exitInterrupted = 130

// newDrillCommand runs a failover drill over real processes.
func newDrillCommand() *cobra.Command {
	var (
		seed        uint64
		out         string
		plain, keep bool
	)
	cmd := &cobra.Command{
		Use:   "drill SCENARIO.yaml",
		Short: "Break something on purpose and see what clients notice",
		Long: `drill starts the gateways, node proxies and applications that the scenario asks
for on loopback addresses, drives clients against them, breaks what the scenario
says at its instant, heals it, and compares what happened with what must hold.
It leaves drill.json and report.html in the output folder, and no process.

Exit codes: 0 everything held, 1 an assertion was broken, 2 the scenario or the
command line is wrong, 3 a process could not start, 4 inconclusive (the fault did
not take effect, or the machine was too slow to tell), 130 interrupted.`,
		Example: "  isthmus drill examples/drills/partial-failure.yaml --out build/demo",
		Args:    oneScenario,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := scenario.Load(args[0])
			if err != nil {
				return exit(exitUsage, err)
			}
			if cmd.Flags().Changed("seed") {
				s.Seed = seed
			}
			if out == "" {
				out = filepath.Join("build", "drill", s.Name)
			}
			return runDrill(cmd, s, args[0], out, !plain && isTerminal(cmd.OutOrStdout()), keep)
		},
	}
	cmd.Flags().Uint64Var(&seed, "seed", 0, "decides arrivals and victims; the scenario's own when left out")
	cmd.Flags().StringVar(&out, "out", "", "folder for drill.json and report.html (default build/drill/<name of the scenario>)")
	cmd.Flags().BoolVar(&plain, "plain", false, "no colour")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep configurations, certificates and logs of every arm, not only of those that went wrong")
	return cmd
}

// oneScenario wants the scenario's file and says where some are.
func oneScenario(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("drill: %d arguments: name one scenario file; a checkout has some in examples/drills", len(args))
	}
	return nil
}

func runDrill(cmd *cobra.Command, s *scenario.Scenario, path, out string, colour, keep bool) error {
	self, err := os.Executable()
	if err != nil {
		return exit(exitStart, fmt.Errorf("find the programs to run: %w", err))
	}
	p := report.NewPrinter(cmd.OutOrStdout(), colour)
	p.Begin(s, path)
	r, err := lab.Run(cmd.Context(), s, lab.Options{Out: out, Bin: filepath.Dir(self), Keep: keep, Progress: p})
	if cmd.Context().Err() != nil || errors.Is(err, context.Canceled) {
		return exit(exitInterrupted, errors.New("interrupted; every process was ended"))
	}
	if err != nil {
		return exit(exitStart, err)
	}
	if err := report.Save(r, out); err != nil {
		return exit(exitStart, err)
	}
	p.End(r)
	fmt.Fprintf(cmd.OutOrStdout(), "%s\n%s\n", filepath.Join(out, "drill.json"), filepath.Join(out, "report.html"))
	switch r.Verdict {
	case measure.Broken:
		return exit(exitFinding, errors.New("an assertion was broken"))
	case measure.Inconclusive:
		if slices.ContainsFunc(r.Arms, measure.ArmResult.Disturbed) {
			return exit(exitInconclusive, errors.New("inconclusive: the machine was too busy, run it again"))
		}
		return exit(exitInconclusive, errors.New("inconclusive: nothing was proved"))
	}
	return nil
}

// isTerminal reports whether w is a terminal that may be coloured.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" {
		return false
	}
	i, err := f.Stat()
	return err == nil && i.Mode()&os.ModeCharDevice != 0
}
