package admission

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/internal/logging"
)

// warnEvery is the time between two warnings about one client and limit.
const warnEvery = 10 * time.Second

// Guard is a Table with what an operator sees of it. Make one with NewGuard and Run
// it. Safe for concurrent use.
type Guard struct {
	*Table
	log     zerolog.Logger
	refused *prometheus.CounterVec
	shed    *prometheus.CounterVec
	lines   logging.PeerLimits // by client
}

// NewGuard returns a guard and registers its metrics. For perSession see New.
func NewGuard(cfg Config, perSession int64, r prometheus.Registerer, log zerolog.Logger) *Guard {
	g := &Guard{Table: New(cfg, perSession), log: log, lines: logging.PeerLimits{Every: warnEvery, Log: &log},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_admission_refused_total", Help: "Sessions and streams refused because their client had reached a limit, by scope and limit."}, []string{"scope", "limit"}),
		shed:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_admission_shed_total", Help: "Streams reset because their client had too many unread bytes, by scope of the limit."}, []string{"scope"}),
	}
	for _, s := range Scopes {
		g.shed.WithLabelValues(string(s))
		for _, l := range LimitNames {
			g.refused.WithLabelValues(string(s), string(l))
		}
	}
	r.MustRegister(g.refused, g.shed,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_admitted_sessions", Help: "Open client sessions."}, func() float64 { return float64(g.Counts().Sessions) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_admitted_streams", Help: "Open client streams."}, func() float64 { return float64(g.Counts().Streams) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_admission_accounts", Help: "Client identities and addresses with an account."}, func() float64 { return float64(g.Counts().Accounts) }))
	return g
}

// Run sweeps the table until ctx ends.
func (g *Guard) Run(ctx context.Context) {
	tick := time.NewTicker(SweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s := g.Sweep(now)
			g.shed.WithLabelValues(string(ByIdentity)).Add(float64(s.ByIdentity))
			g.shed.WithLabelValues(string(ByAddress)).Add(float64(s.ByAddress))
			if n := s.ByIdentity + s.ByAddress; n > 0 {
				g.lines.Sample(g.log.Warn(), "", "shed").Int("streams", n).Msg("reset streams of clients with too many unread bytes: limits.*.unreadBytes")
			}
		}
	}
}

// Refused counts and logs a *Refusal of c, and returns the status for its CONNECT.
func (g *Guard) Refused(err error, c Client) (status int) {
	var r *Refusal
	if !errors.As(err, &r) {
		return 503
	}
	g.refused.WithLabelValues(string(r.Scope), string(r.Limit)).Inc()
	g.lines.Sample(g.log.Warn(), c.Identity, string(r.Scope)+" "+string(r.Limit)).Err(r).Str("peer", c.Identity).Stringer("from", c.Address).
		Str("scope", string(r.Scope)).Str("limit", string(r.Limit)).Int64("bound", r.Bound).Msg("client refused: it has reached a limit")
	if r.Limit == StreamsPerSecond {
		return 429
	}
	return 503
}
