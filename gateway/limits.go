package gateway

import (
	"time"

	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// Limits bound what one client may hold of this gateway, and what of the pods behind
// it, which know all its clients by one address.
type Limits struct {
	admission.Config `yaml:",inline"`
	Inner            InnerLimits `yaml:"inner"`
}

// InnerLimits bound the TLS handshakes between clients and a pod that this gateway
// carries and that are not over. A node proxy has room for 1024 of each pod by default
// (its limits.handshakes), of all gateways and of its own network.
//
// A pod takes 1 to 2 ms of a processor for each, and they are under way for one round
// trip of the client: at 100 ms 128 of them are 1280 each second, which is more than a
// processor of the pod's node can do. So an honest client is not held back by them,
// while a hostile one, which leaves them unfinished, has an eighth of the room. What is
// left unfinished a node proxy ends after 3 s by default, and this gateway soon after that
// (handshakeTime): so within Wait everybody's turn comes, also where hostile identities
// fill the room of a pod.
//
// Fewer under way at once also end sooner. 2000 of one identity at once to 10 pods, with
// gateway, clients and pods on two busy processors: 140 each second, instead of 33 without
// bounds, where most ended by a timeout when they were nearly done (November 2026).
type InnerLimits struct {
	HandshakesPerIdentity int           `yaml:"handshakesPerIdentity" default:"128" doc:"unfinished TLS handshakes of one client identity with one pod; the next one is queued; 0: no bound"`
	HandshakesPerPod      int           `yaml:"handshakesPerPod" default:"384" doc:"the same for all client identities together, which take turns. Keep the sum over all gateways of the network below limits.handshakes of the node proxies; 0: no bound"`
	Wait                  time.Duration `yaml:"wait" default:"4s" doc:"time that a CONNECT may be queued; then it is answered with 503 and isthmus-reason overload, which counts against no pod"`
}

func defaultLimits() Limits {
	return Limits{Config: admission.DefaultConfig(), Inner: InnerLimits{HandshakesPerIdentity: 128, HandshakesPerPod: 384, Wait: 4 * time.Second}}
}

// Check adds what is wrong with l, the value of field, to v.
func (l Limits) Check(v *strictyaml.Check, field string) {
	l.Config.Check(v, field)
	if n := l.Inner.HandshakesPerIdentity; n < 0 {
		v.Fail(field+".inner.handshakesPerIdentity", "%d: must not be negative; 0 is no bound", n)
	}
	if n := l.Inner.HandshakesPerPod; n < 0 {
		v.Fail(field+".inner.handshakesPerPod", "%d: must not be negative; 0 is no bound", n)
	}
	v.Positive(field+".inner.wait", l.Inner.Wait)
}
