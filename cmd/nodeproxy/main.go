// Command nodeproxy runs the node proxy of one node.
package main

import (
	"fmt"
	"os"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/memory"
	"github.com/isthmus-mesh/isthmus/internal/process"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

func main() {
	if err := process.CoarseTimers(); err != nil {
		fmt.Fprintln(os.Stderr, err) // it only costs CPU
	}
	os.Exit(process.Main(process.Spec[nodeproxy.Config]{
		Name:     "nodeproxy",
		Instance: nodeproxy.Config.Instance,
		Load:     nodeproxy.LoadConfig,
		Problems: func(c nodeproxy.Config) error { return c.Discovery.Problems() },
		Warnings: func(c nodeproxy.Config) []string { return c.Warnings() },
		Absent:   func(path string, c nodeproxy.Config) []string { return c.Absent(path) },
		Log:      func(c nodeproxy.Config) logging.Config { return c.Log },
		Open: func(c nodeproxy.Config, log zerolog.Logger) (process.Runner, error) {
			c.Memory = memory.OfProcess()
			return nodeproxy.Open(c, log)
		},
	}, os.Args[1:], os.Stderr))
}
