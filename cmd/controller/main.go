// Command controller runs isthmus-controller, which alone writes to a cluster's API server.
package main

import (
	"os"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/controller"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/process"
)

func main() {
	os.Exit(process.Main(process.Spec[controller.Config]{
		Name:     "controller",
		Instance: controller.Config.Instance,
		Load:     controller.LoadConfig,
		Log:      func(c controller.Config) logging.Config { return c.Log },
		Open:     func(c controller.Config, log zerolog.Logger) (process.Runner, error) { return controller.Open(c, log) },
	}, os.Args[1:], os.Stderr))
}
