package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// newRoot builds the whole command tree anew, so that tests share nothing.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "isthmus",
		Short: "Operate a mesh that spans networks",
		Long: `isthmus sets up and inspects a mesh whose networks are joined by gateways. A network is
what reaches its own pods directly: mostly one Kubernetes cluster.

Two clusters are joined by init for each, the chart helm/isthmus in each, link, and check, which
says what is still missing: docs/kubernetes.md has every command. Without Kubernetes keys and
certificates come from ca and network; README.md has two networks on one machine.

Exit codes, unless a command says more: 0 done, 1 a finding, 2 usage, 3 it could not do its work.`,
		Version:       buildVersion().String(),
		SilenceErrors: true, // run prints them, once
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = false
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Join Kubernetes clusters:", []*cobra.Command{newInitCommand(), newLinkCommand(), newUnlinkCommand(), newCheckCommand(), newDNSCommand()}},
		{"See what a mesh does:", []*cobra.Command{newStatusCommand(), newExplainCommand()}},
		{"Keys, certificates and configuration as files:", []*cobra.Command{newCACommand(), newNetworkCommand(), newExportCommand()}},
		{"Try it out:", []*cobra.Command{newDrillCommand(), newAppCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
			root.AddCommand(c)
		}
	}
	root.AddCommand(newVersionCommand())
	root.SetHelpCommand(newHelpCommand())
	root.SetFlagErrorFunc(flagError)
	withUsageChecks(root)
	return root
}

// outputFlag adds -o/--output with the formats that the command knows; check
// rejects others.
func outputFlag(cmd *cobra.Command) (format *string, check func() error) {
	format = cmd.Flags().StringP("output", "o", "text", "output format: text or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return format, func() error {
		if *format != "text" && *format != "json" {
			return exit(exitUsage, fmt.Errorf("--output: %q is not a format: use text or json", *format))
		}
		return nil
	}
}
