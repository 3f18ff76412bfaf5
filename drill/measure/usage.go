package measure

import "github.com/isthmus-mesh/isthmus/drill/scenario"

// Role is what kind of process an [Usage] is of.
type Role string

// The roles.
const (
	RoleGateway   Role = scenario.RoleGateway
	RoleNodeProxy Role = scenario.RoleNodeProxy
)

// Usage is what a gateway or node proxy took to know what it knows of others.
type Usage struct {
	Process string `json:"process"`
	Role    Role   `json:"role"`
	// Bytes of gossip and health streams while traffic ran, as the process counts
	// them: without TLS and TCP. Null if it was started anew meanwhile.
	SentPerSecond     *float64 `json:"control_sent_bytes_per_second"`
	ReceivedPerSecond *float64 `json:"control_received_bytes_per_second"`
	ResidentBytes     int64    `json:"resident_bytes"` // at the end of traffic
}

// Resident is ResidentBytes as a number of its own.
func (u Usage) Resident() *float64 { return finite(float64(u.ResidentBytes)) }

// control is the bytes per second both ways; ok is false if they are not known.
func (u Usage) control() (bytes float64, ok bool) {
	if u.SentPerSecond == nil || u.ReceivedPerSecond == nil {
		return 0, false
	}
	return *u.SentPerSecond + *u.ReceivedPerSecond, true
}

// RoleUsage is what the processes of one role took.
type RoleUsage struct {
	Role      Role   `json:"role"`
	Processes int    `json:"processes"`
	Control   Spread `json:"control_bytes_per_second"` // sent and received
	Resident  Spread `json:"resident_bytes"`
}

// Spread is the median and the greatest of several values; null without any.
type Spread struct {
	Median *float64 `json:"median"`
	Max    *float64 `json:"max"`
}

func spread(v []float64) Spread {
	return Spread{finite(quantile("median", v).Number), finite(quantile("max", v).Number)}
}

// byRole sums up what was read, gateways first; a role without processes is left out.
func byRole(usage []Usage) (out []RoleUsage) {
	for _, role := range []Role{RoleGateway, RoleNodeProxy} {
		u := RoleUsage{Role: role}
		var control, resident []float64
		for _, p := range usage {
			if p.Role != role {
				continue
			}
			u.Processes++
			resident = append(resident, float64(p.ResidentBytes))
			if bytes, ok := p.control(); ok {
				control = append(control, bytes)
			}
		}
		if u.Processes > 0 {
			u.Control, u.Resident = spread(control), spread(resident)
			out = append(out, u)
		}
	}
	return out
}

// controlBytesPerSecond is a quantile over the processes of a role.
func controlBytesPerSecond(r *Record, args map[string]string) Value {
	var v []float64
	for _, u := range r.Usage {
		if bytes, ok := u.control(); ok && u.Role == Role(args["role"]) {
			v = append(v, bytes)
		}
	}
	return quantile(args["q"], v)
}
