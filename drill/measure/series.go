package measure

import "time"

// bucketOf is the resolution of a series: a quarter of a second, coarser for
// long drills.
func bucketOf(d time.Duration) time.Duration {
	for _, b := range []time.Duration{250 * time.Millisecond, time.Second, 5 * time.Second} {
		if d/b <= 300 {
			return b
		}
	}
	return 10 * time.Second
}

// Bucket is what began in one span of series_step seconds.
type Bucket struct {
	T       float64   `json:"t"` // its begin
	OK      int       `json:"ok"`
	Failed  int       `json:"failed"`
	Refused int       `json:"refused_by_overload,omitempty"`
	P50     *float64  `json:"p50"` // ms
	P99     *float64  `json:"p99"`
	Max     *float64  `json:"max"`
	By      []float64 `json:"by"` // answers by network, in the order of the scenario
}

func (r *Record) series() []Bucket {
	bucket := bucketOf(r.Layout.Scenario.Duration)
	n := int((r.Layout.Scenario.Duration + bucket - 1) / bucket)
	out := make([]Bucket, n)
	ms := make([][]float64, n)
	index := map[string]int{}
	for i, net := range r.Layout.Scenario.Networks {
		index[net.Name] = i
	}
	for i := range out {
		out[i].T = (time.Duration(i) * bucket).Seconds()
		out[i].By = make([]float64, len(index))
	}
	for _, a := range r.Attempts {
		i := int(a.At / bucket)
		if i >= n {
			continue
		}
		if a.Failed() {
			out[i].Failed++
			continue
		}
		if a.Refused {
			out[i].Refused++
		}
		if !a.Answered() {
			continue // broken off before the answer, or refused
		}
		out[i].OK++
		ms[i] = append(ms[i], millis(a.Latency()))
		if p, ok := r.Layout.Pod(a.Pod); ok {
			out[i].By[index[p.Network]]++
		}
	}
	for i := range out {
		out[i].P50, out[i].P99, out[i].Max = finite(quantile("p50", ms[i]).Number), finite(quantile("p99", ms[i]).Number), finite(quantile("max", ms[i]).Number)
	}
	return out
}
