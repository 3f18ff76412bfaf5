package pods

import (
	"context"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/nodeproxy/cnisocket"
)

// verdicts counts what the CNI plugin is answered, by verdict: a closed set.
type verdicts map[cnisocket.Verdict]prometheus.Counter

func newVerdicts(r prometheus.Registerer) verdicts {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_cni_verdicts_total",
		Help: "Pods announced by the CNI plugin, by verdict: captured, outside (not in the mesh), unknown (no gateway reported it in time), failed (it cannot be captured), stopping (the plugin uses the next node proxy), refused (announced again, or gone)."}, []string{"verdict"})
	r.MustRegister(vec)
	out := verdicts{}
	for _, v := range []cnisocket.Verdict{cnisocket.Captured, cnisocket.Outside, cnisocket.Unknown, cnisocket.Failed, cnisocket.Stopping, cnisocket.Refused} {
		out[v] = vec.WithLabelValues(string(v))
	}
	return out
}

// Plugins answers the CNI plugin of the node: once Register has been called.
func (c *Set) Plugins() cnisocket.Node { return countedPlugins{plugins{c}, c.verdicts} }

// countedPlugins are plugins whose verdicts are counted.
type countedPlugins struct {
	plugins
	verdicts verdicts
}

// Add implements cnisocket.Node.
func (p countedPlugins) Add(ctx context.Context, r cnisocket.Request, namespace *os.File) cnisocket.Reply {
	reply := p.plugins.Add(ctx, r, namespace)
	p.verdicts[reply.Verdict].Inc()
	return reply
}
