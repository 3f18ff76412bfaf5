package main

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/isthmus-mesh/isthmus/drill/demoapp"
)

// newAppCommand runs the small application that drills and walk-throughs use.
func newAppCommand() *cobra.Command {
	var (
		name, exchange string
		listen         []string
		control        bool
	)
	cmd := &cobra.Command{
		Use:   "app --name NAME --listen ADDR:PORT[,ADDR:PORT…]",
		Short: "Run a small application that says who it is",
		Long: `app answers each line with its name, the port and the rest of the line, and any
HTTP request with 200, its name and the port. Drills run it in the place of pods.`,
		Example: "  isthmus app --name web-1 --listen 127.0.0.1:8080\n  curl http://127.0.0.1:8080/",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := demoapp.Config{Name: name, Exchange: demoapp.Exchange(exchange)}
			for _, l := range listen {
				a, err := netip.ParseAddrPort(l)
				if err != nil {
					return exit(exitUsage, fmt.Errorf("--listen: %q: write address:port, for example 127.0.0.1:8080", l))
				}
				c.Listen = append(c.Listen, a)
			}
			a, err := demoapp.Start(cmd.Context(), c)
			if err != nil {
				return exit(exitStart, err)
			}
			defer a.Close()
			if control {
				return exit(exitStart, a.Control(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout()))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s listens on %s\n", name, strings.Join(listen, ", "))
			<-cmd.Context().Done()
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name that it answers with (required)")
	cmd.Flags().StringSliceVar(&listen, "listen", nil, "address:port to listen on, several with commas (required)")
	cmd.Flags().StringVar(&exchange, "exchange", "request", "request: clients speak first; banner: the application does")
	cmd.Flags().BoolVar(&control, "control", false, "obey orders on standard input, one JSON object to a line, and end with it")
	_ = cmd.MarkFlagRequired("name")
	_ = cmd.MarkFlagRequired("listen")
	return cmd
}
