package main

import (
	"github.com/spf13/cobra"

	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/discovery/ztunnel"
)

func newExportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write what other proxies must know of the mesh",
		Long:  "export writes the mesh of a discovery file in the form that other proxies read: stock ztunnels, beside\nnode proxies of ours on other nodes (docs/interop.md).",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newExportZtunnelCommand())
	return cmd
}

func newExportZtunnelCommand() *cobra.Command {
	var config, node string
	cmd := &cobra.Command{
		Use:   "ztunnel",
		Short: "Print the local configuration of a stock ztunnel on one node",
		Long: `ztunnel prints what a stock ztunnel on the node must know, as it reads it from
LOCAL_XDS_PATH: the workloads of the node's network, services on other networks
through their gateways, and all services. It reads that file once, at its start:
export it again and restart it when the mesh changes.`,
		Example: "  isthmus export ztunnel --config mesh.yaml --node east-1 > ztunnel.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := file.Load(config)
			if err != nil {
				return exit(exitUsage, err)
			}
			c, err := ztunnel.Export(s, node)
			if err != nil {
				return exit(exitUsage, err)
			}
			text, err := c.Marshal()
			if err != nil {
				return exit(exitStart, err)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return exit(exitStart, err)
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "discovery file of the mesh (required)")
	cmd.Flags().StringVar(&node, "node", "", "node that the ztunnel runs on (required)")
	_ = cmd.MarkFlagRequired("config")
	_ = cmd.MarkFlagRequired("node")
	_ = cmd.MarkFlagFilename("config", "yaml")
	return cmd
}
