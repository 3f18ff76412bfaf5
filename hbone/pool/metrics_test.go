package pool

import (
	"context"
	"errors"
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
			"crowded_sessions": 0, "halted_sessions": 0, "failed_total halted": 0, "failed_total full": 0, "failed_total dial": 0, "failed_total left": 0,
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

// Each call that gets no session is counted once, by its cause.
func TestCallsWithoutASessionAreCountedByCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := func(p *Pool, dial Dial, patience time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, _, err := p.Open(ctx, Key{}, dial, poolReq)
			return err
		}
		b := &backend{t: t, cfg: hbone.DefaultConfig(), delay: time.Millisecond}
		b.cfg.MaxStreams = 1
		p := New(Config{MaxStreams: 1})
		first := poolOpen(t, p, Key{}, b)
		never := func(ctx context.Context) (*hbone.Session, error) { <-ctx.Done(); return nil, ctx.Err() }
		if err := open(p, never, time.Second); !errors.Is(err, ErrExhausted) {
			t.Errorf("%v, want ErrExhausted", err)
		}
		first.Close()
		p.Close()
		if got, want := p.Stats().Failed, (Failures{Full: 1}); got != want {
			t.Errorf("%+v are counted, want %+v", got, want)
		}

		q := New(Config{})
		if err := open(q, never, time.Second); err == nil {
			t.Error("a stream without a session")
		}
		q.Retire(func(Key) bool { return true }) // ends its dial, which nobody waits for
		failing := &backend{t: t, fail: errors.New("refused")}
		if err := open(q, failing.dial, time.Second); !errors.Is(err, failing.fail) {
			t.Errorf("%v, want that of the dial", err)
		}
		if got, want := q.Stats().Failed, (Failures{Left: 1, Dial: 1}); got != want {
			t.Errorf("%+v are counted, want %+v", got, want)
		}
		q.Close()
		b.stop()
		time.Sleep(time.Minute)
	})
}
