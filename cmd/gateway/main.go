// Command gateway runs the east-west gateway of one network.
package main

import (
	"fmt"
	"os"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/memory"
	"github.com/isthmus-mesh/isthmus/internal/process"
)

func main() {
	if err := process.CoarseTimers(); err != nil {
		fmt.Fprintln(os.Stderr, err) // it only costs CPU
	}
	os.Exit(process.Main(process.Spec[gateway.Config]{
		Name:     "gateway",
		Instance: gateway.Config.Instance,
		Load:     gateway.LoadConfig,
		Problems: func(c gateway.Config) error { return c.Discovery.Problems() },
		Warnings: func(c gateway.Config) []string { return c.Warnings() },
		Log:      func(c gateway.Config) logging.Config { return c.Log },
		Open: func(c gateway.Config, log zerolog.Logger) (process.Runner, error) {
			c.Memory = memory.OfProcess()
			return gateway.Open(c, log)
		},
	}, os.Args[1:], os.Stderr))
}
