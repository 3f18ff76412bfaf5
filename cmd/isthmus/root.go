package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// newRoot builds the whole command tree anew, so that tests share nothing.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "isthmus",
		Short:         "Operate a mesh that spans networks",
		Long:          "isthmus makes development certificates and inspects a mesh whose networks are joined by gateways.\n\nExit codes: 0 done, 1 a finding, 2 usage, 3 could not start, 4 inconclusive.",
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
	root.AddCommand(
		newCACommand(),
		newNetworkCommand(),
		newInitCommand(),
		newLinkCommand(),
		newUnlinkCommand(),
		newCheckCommand(),
		newVersionCommand(),
		newDrillCommand(),
		newExportCommand(),
		newAppCommand(),
		newStatusCommand(),
		newExplainCommand(),
	)
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
