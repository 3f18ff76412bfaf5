//go:build linux

package fleet

import (
	"context"
	"fmt"
	"io"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics are a process's metric families by name.
type Metrics map[string]*dto.MetricFamily

// Metrics asks for all metrics.
func (p *Process) Metrics(ctx context.Context) (m Metrics, err error) {
	err = p.Get(ctx, "/metrics", func(r io.Reader) error {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		m, err = parser.TextToMetricFamilies(r)
		return err
	})
	return m, err
}

// Sum adds up counters and gauges of a name whose labels have all the given
// values. It is an error if the process has no such metric, and a counter vector
// that never counted is one that it has not.
func (m Metrics) Sum(name string, labels map[string]string) (total float64, err error) {
	family := m[name]
	if family == nil {
		return 0, fmt.Errorf("no metric %s", name)
	}
	for _, one := range family.Metric {
		if matches(one, labels) {
			total += one.GetGauge().GetValue() + one.GetCounter().GetValue() + one.GetUntyped().GetValue()
		}
	}
	return total, nil
}

func matches(m *dto.Metric, labels map[string]string) bool {
	found := 0
	for _, l := range m.Label {
		if v, ok := labels[l.GetName()]; ok && v == l.GetValue() {
			found++
		}
	}
	return found == len(labels)
}
