package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/identity"
)

func newCACommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Make, inspect and rotate a certificate authority and what it issues",
		Long: `ca keeps a small certificate authority in a directory. On Kubernetes isthmus init makes it
(DIR/ca), the controller issues what it signs, and rotate replaces its root; init, issue and
serve are for meshes from files, development, tests and demonstrations.

Whoever can read its key can be anybody in the mesh: keep the directory where you keep such
things. serve asks nobody who they are, and is for one machine.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCAInitCommand(), newCAIssueCommand(), newCAShowCommand(), newCAServeCommand(), newCARotateCommand())
	return cmd
}

func newCAInitCommand() *cobra.Command {
	var dir, domain string
	var lifetime time.Duration
	cmd := &cobra.Command{
		Use:     "init",
		Short:   "Make a new root key and certificate in a directory",
		Long:    "init writes ca.pem and ca-key.pem (mode 0600). It never replaces an existing one.",
		Example: "  isthmus ca init --dir ca --trust-domain cluster.local",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			td, err := spiffeid.TrustDomainFromString(domain)
			if err != nil {
				return exit(exitUsage, fmt.Errorf("--trust-domain %q: %w: want a name such as cluster.local", domain, err))
			}
			if lifetime < identity.MinTTL {
				return exit(exitUsage, fmt.Errorf("--lifetime %s: too short: want at least %s", lifetime, identity.MinTTL))
			}
			ca, err := identity.InitCA(dir, td, identity.WithCALifetime(lifetime))
			if err != nil {
				return exit(exitStart, err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "made a root for trust domain %s in %s, valid until %s\n",
				td, dir, ca.Certificate().NotAfter.UTC().Format(time.RFC3339))
			return exit(exitStart, err)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "ca", "directory of the ca; made with mode 0700")
	cmd.Flags().StringVar(&domain, "trust-domain", "cluster.local", "trust domain that the ca signs for")
	cmd.Flags().DurationVar(&lifetime, "lifetime", 365*24*time.Hour, "how long the root is valid")
	_ = cmd.MarkFlagDirname("dir")
	return cmd
}

func newCAIssueCommand() *cobra.Command {
	var dir, out string
	var ids []string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:     "issue",
		Short:   "Issue certificates and keys for identities",
		Long:    "issue writes OUT/bundle.pem and OUT/<namespace>/<service account>/{cert,key}.pem, each replaced in one step:\nprocesses with identity.source: files pick them up within a second. --id may be repeated. That of a node proxy has /node/<network>/<node> behind its service account: issue it to that node only.",
		Example: "  isthmus ca issue --dir ca --out svids --id spiffe://cluster.local/ns/shop/sa/cart --ttl 1h\n  isthmus ca issue --dir ca --out svids-node-1 --id spiffe://cluster.local/ns/isthmus-system/sa/nodeproxy/node/west/node-1",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ttl < identity.MinTTL {
				return exit(exitUsage, fmt.Errorf("--ttl %s: too short: want at least %s", ttl, identity.MinTTL))
			}
			wanted := make([]spiffeid.ID, len(ids))
			for i, s := range ids {
				id, err := identity.ParseIssued(s)
				if err != nil {
					return exit(exitUsage, fmt.Errorf("--id: %w", err))
				}
				wanted[i] = id
			}
			ca, err := identity.OpenCA(dir)
			if err != nil {
				return exit(exitStart, err)
			}
			return exit(exitStart, issue(cmd, ca, out, wanted, ttl))
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "ca", "directory of the ca")
	cmd.Flags().StringVar(&out, "out", "", "directory to write to (required)")
	cmd.Flags().StringArrayVar(&ids, "id", nil, "identity spiffe://<trust domain>/ns/<namespace>/sa/<service account>, with /node/<network>/<node> behind it for a node proxy (required)")
	cmd.Flags().DurationVar(&ttl, "ttl", identity.DefaultTTL, "how long the certificates are valid")
	for _, f := range []string{"out", "id"} {
		_ = cmd.MarkFlagRequired(f)
	}
	_ = cmd.MarkFlagDirname("dir")
	_ = cmd.MarkFlagDirname("out")
	return cmd
}

func issue(cmd *cobra.Command, ca *identity.CA, out string, ids []spiffeid.ID, ttl time.Duration) error {
	for _, id := range ids {
		svid, err := ca.Issue(id, ttl)
		if err != nil {
			return err
		}
		if err := identity.WriteSVID(out, svid); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "issued %s below %s, valid until %s\n", id, out, svid.NotAfter().UTC().Format(time.RFC3339)); err != nil {
			return err
		}
	}
	return nil
}
