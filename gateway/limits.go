package gateway

import (
	"time"

	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// Limits bound the resources of one client at this gateway, and at the pods behind it,
// which see all its clients as one address.
type Limits struct {
	admission.Config `yaml:",inline"`
	Inner            InnerLimits `yaml:"inner"`
}

// InnerLimits bound the unfinished TLS handshakes between clients and a pod that this
// gateway carries. A node proxy has room for 1024 per pod by default (its
// limits.handshakes), of all gateways and of its own network.
//
// A handshake costs a pod 1 to 2 ms of CPU and lasts one round trip of the client. At
// 100 ms, 128 of them are 1280 per second, more than a CPU of the pod's node can do. So
// the limit does not slow an honest client, while a hostile one, which leaves them
// unfinished, has an eighth of the room. A node proxy closes unfinished ones after 3 s by
// default, and this gateway soon after that (handshakeTime). So every CONNECT gets its
// turn within Wait, even if hostile identities fill the room of a pod.
//
// Fewer concurrent handshakes also finish sooner. With 2000 concurrent ones of one
// identity to 10 pods, and gateway, clients and pods on two busy CPUs, 140 finished per
// second, against 33 without bounds, where most timed out when nearly done (November 2026).
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
