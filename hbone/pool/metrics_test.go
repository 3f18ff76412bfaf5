package pool

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/hbone"
)

func TestMetricsTellWhatThePoolDid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: hbone.DefaultConfig(), delay: time.Millisecond}
		b.cfg.MaxStreams = 1
		p := New(Config{})
		reg := prometheus.NewRegistry()
		reg.MustRegister(NewMetrics(p))
		open := []*hbone.Stream{poolOpen(t, p, Key{}, b), poolOpen(t, p, Key{}, b)}
		endStream(open[0])
		third := poolOpen(t, p, Key{}, b)
		got := map[string]float64{}
		families, err := reg.Gather()
		check(t, err)
		for _, f := range families {
			for _, m := range f.Metric {
				name := f.GetName()
				for _, l := range m.Label {
					name += " " + l.GetValue()
				}
				got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		for name, want := range map[string]float64{
			"sessions": 2, "streams": 2, "waiting": 0, "dials_in_flight": 0, "requests_total ready": 1, "requests_total waited": 2,
			"dials_total ok": 2, "dials_total error": 0, "repeats_total gone": 0, "hedges_total": 0, "hedges_won_total": 0, "retired_total": 0,
		} {
			if v, ok := got["isthmus_pool_"+name]; !ok || v != want {
				t.Errorf("isthmus_pool_%s %v, want %v", name, v, want)
			}
		}
		open[1].Close()
		third.Close()
		p.Close()
		b.stop()
		time.Sleep(time.Minute)
	})
}
