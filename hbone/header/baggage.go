package header

import "strings"

// Baggage describes a workload in the baggage header, as ztunnel does. Empty
// parts are left out on the wire.
type Baggage struct {
	Cluster      string
	Namespace    string
	WorkloadType string // deployment, cronjob, pod or job; empty counts as deployment
	Workload     string
	ServiceName  string // canonical name
	Revision     string // canonical revision
	Region       string
	Zone         string
}

const workloadTypes = " deployment cronjob pod job "

// String returns the wire form: comma-joined key=value pairs. Characters that
// would end a value are dropped.
func (b Baggage) String() string {
	kind := b.WorkloadType
	if !strings.Contains(workloadTypes, " "+kind+" ") || kind == "" {
		kind = "deployment"
	}
	var out strings.Builder
	add := func(key, value string) {
		value = baggageValue(value)
		if value == "" {
			return
		}
		if out.Len() > 0 {
			out.WriteByte(',')
		}
		out.WriteString(key)
		out.WriteByte('=')
		out.WriteString(value)
	}
	add("k8s.cluster.name", b.Cluster)
	add("k8s.namespace.name", b.Namespace)
	add("k8s."+kind+".name", b.Workload)
	add("service.name", b.ServiceName)
	add("service.version", b.Revision)
	add("cloud.region", b.Region)
	add("cloud.availability_zone", b.Zone)
	return out.String()
}

func baggageValue(s string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f || r == ',' || r == ';' || r == '"' || r == '\\' {
			return -1
		}
		return r
	}, s)
}

// ParseBaggage reads the wire form. Unknown keys and pairs without a value are
// left out; of repeated keys the last one counts.
func ParseBaggage(s string) Baggage {
	var b Baggage
	for part := range strings.SplitSeq(s, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		value, _, _ = strings.Cut(value, ";") // properties
		if value = baggageValue(value); value == "" {
			continue
		}
		switch key {
		case "k8s.cluster.name":
			b.Cluster = value
		case "k8s.namespace.name":
			b.Namespace = value
		case "k8s.deployment.name", "k8s.cronjob.name", "k8s.pod.name", "k8s.job.name":
			b.WorkloadType = strings.TrimSuffix(strings.TrimPrefix(key, "k8s."), ".name")
			b.Workload = value
		case "service.name":
			b.ServiceName = value
		case "service.version":
			b.Revision = value
		case "cloud.region":
			b.Region = value
		case "cloud.availability_zone":
			b.Zone = value
		}
	}
	return b
}
