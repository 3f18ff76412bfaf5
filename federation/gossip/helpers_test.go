package gossip

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/mesh"
)

type (
	meshGateway = mesh.Gateway
	publicKey   = networkkey.Public
)

func counted(c prometheus.Counter) float64 { return testutil.ToFloat64(c) }
