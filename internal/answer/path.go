package answer

import "fmt"

// Path is the result of a path check to one address of a gateway, over TCP connections of its own.
type Path struct {
	Exchanges int     `json:"exchanges"` // small requests with a response
	RTTMS     float64 `json:"rttMs"`     // smoothed by the kernel, in milliseconds
	JitterMS  float64 `json:"jitterMs"`  // mean difference between the times of one exchange and the next
	There     Way     `json:"there"`     // to the gateway
	Back      Way     `json:"back"`      // from it. Zero segments: it does not report them
	// MaxSegment is the value of lines.maxSegment with which full-size packets pass, if larger ones are dropped. 0: none are.
	MaxSegment int    `json:"maxSegment,omitempty"`
	Congestion string `json:"congestion,omitempty"` // congestion control algorithm of the connection
	// BitsPerSecond is the throughput of one connection to the gateway. 0: not measured.
	BitsPerSecond float64 `json:"bitsPerSecond,omitempty"`
	Note          string  `json:"note,omitempty"` // a measurement that failed, and why
}

// Way is one direction of a path.
type Way struct {
	Segments    uint64 `json:"segments"`    // with data, sent
	Lost        uint64 `json:"lost"`        // of these, sent again because they did not arrive
	PacketBytes int    `json:"packetBytes"` // largest IP packet that arrived
	Dropped     bool   `json:"dropped,omitempty"`
}

// Loss is the share of segments that did not arrive, 0 to 1.
func (w Way) Loss() float64 {
	if w.Segments == 0 {
		return 0
	}
	return min(1, float64(w.Lost)/float64(w.Segments))
}

// Two lost segments and one per cent are a finding. A path that loses 5 per cent one way had it in 240 of 240 checks: to
// the gateway and from it, with cubic and bbr, at 80 ms. One that loses 0.1 per cent both ways had it in 0 of 60
// (November 2026).
const (
	leastLost = 2
	leastLoss = 0.01
)

func (w Way) lossy() bool { return w.Lost >= leastLost && w.Loss() >= leastLoss }

// Fault is one defect of a path, and its remedy.
type Fault struct{ Found, Remedy string }

// Faults returns the defects of p. The first is the gravest.
func (p *Path) Faults() (list []Fault) {
	for _, w := range []struct {
		Way
		word string
	}{{p.There, "to"}, {p.Back, "from"}} {
		if w.Dropped {
			list = append(list, Fault{
				fmt.Sprintf("TCP connects, packets over %d bytes %s it are dropped", w.PacketBytes, w.word),
				fmt.Sprintf("set lines.maxSegment: %d on gateways and node proxies, or fix the tunnel's MTU", p.MaxSegment)})
		}
		if w.lossy() {
			f := Fault{fmt.Sprintf("%.2g %% of the packets %s it are lost (%d of %d)", 100*w.Loss(), w.word, w.Lost, w.Segments),
				"find the link that loses packets, by error counters of its interfaces and by rate limits"}
			if p.Congestion != "bbr" {
				f.Remedy += fmt.Sprintf("; until then set lines.congestionControl: bbr on gateways and node proxies, and load the module tcp_bbr on their nodes (it is %s)", p.Congestion)
			}
			list = append(list, f)
		}
	}
	return list
}

// String is p in one line, without its faults.
func (p *Path) String() string {
	s := fmt.Sprintf("round trip %.1f ms, jitter %.1f ms (%d exchanges), lost to it %d of %d packets", p.RTTMS, p.JitterMS, p.Exchanges, p.There.Lost, p.There.Segments)
	if p.Back.Segments > 0 {
		s += fmt.Sprintf(", from it %d of %d, packets of %d bytes pass to it, of %d bytes from it", p.Back.Lost, p.Back.Segments, p.There.PacketBytes, p.Back.PacketBytes)
	} else {
		s += fmt.Sprintf(", packets of %d bytes pass to it", p.There.PacketBytes)
	}
	if p.BitsPerSecond > 0 {
		s += fmt.Sprintf(", %.3g Mbit/s to it on one connection", p.BitsPerSecond/1e6)
	}
	if p.Note != "" {
		s += "; " + p.Note
	}
	return s
}
