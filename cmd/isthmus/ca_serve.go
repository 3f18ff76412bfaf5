package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/identity/istioca"
)

func newCAServeCommand() *cobra.Command {
	var (
		dir, listen string
		names       []string
		ttl         time.Duration
		anyAddress  bool
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Issue certificates to stock ztunnels over Istio's protocol",
		Long: `serve answers istio.v1.auth.IstioCertificateService until it is interrupted, so
that an unmodified ztunnel (CA_ADDRESS, CA_ROOT_CA) has SVIDs of this ca. It asks
nobody who they are: whoever reaches the address can be anybody in the mesh.
It logs every certificate that it issues or refuses to standard error.`,
		Example: "  isthmus ca serve --dir ca --listen 127.0.0.1:15012",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			address, err := netip.ParseAddrPort(listen)
			if err != nil {
				return exit(exitUsage, fmt.Errorf("--listen: %q: write address:port, for example 127.0.0.1:15012", listen))
			}
			if !address.Addr().IsLoopback() && !anyAddress {
				return exit(exitUsage, fmt.Errorf("--listen %s is no loopback address: whoever reaches it can be anybody in the mesh; listen on 127.0.0.1, or give --insecure-any-address on a network that is yours alone", address))
			}
			ca, err := identity.OpenCADir(dir)
			if err != nil {
				return exit(exitStart, err)
			}
			log := zerolog.New(cmd.ErrOrStderr()).With().Timestamp().Logger()
			s, err := istioca.New(ca, ttl, names, log)
			if err != nil {
				return exit(exitUsage, err)
			}
			l, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", address.String())
			if err != nil {
				return exit(exitStart, fmt.Errorf("serve certificates: %w", err))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "ca of trust domain %s listens on %s\n", ca.Current().TrustDomain(), l.Addr())
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			reading := make(chan error, 1)
			go func() { reading <- ca.Run(ctx, log) }()
			err = s.Serve(ctx, l)
			cancel()
			return exit(exitFinding, errors.Join(err, <-reading))
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "ca", "directory of the ca")
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:15012", "address:port to listen on")
	cmd.Flags().DurationVar(&ttl, "ttl", identity.DefaultTTL, "how long certificates are valid at most; clients may ask for less")
	cmd.Flags().StringArrayVar(&names, "name", nil, "host name or IP address by which clients call it, besides istiod.istio-system.svc, localhost and 127.0.0.1; may be repeated")
	cmd.Flags().BoolVar(&anyAddress, "insecure-any-address", false, "listen on other addresses than loopback")
	_ = cmd.MarkFlagDirname("dir")
	return cmd
}
