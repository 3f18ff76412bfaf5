// Package admin serves readiness, metrics, profiles and the state of a process
// to operators on a loopback address. To other machines it serves readiness and
// metrics only.
package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/isthmus-mesh/isthmus/internal/buildinfo"
)

// Config is the part of a process's YAML that places its admin server.
type Config struct {
	Address netip.AddrPort `yaml:"address" default:"127.0.0.1:15000" doc:"loopback address of the admin server; GET / lists its endpoints" env:"ISTHMUS_ADMIN_ADDRESS"`
}

// Validate refuses an empty address, and one that other machines could reach.
func (c Config) Validate() error {
	if !c.Address.IsValid() {
		return errors.New("admin.address: is empty: write a loopback address and a port, such as 127.0.0.1:15000, or leave the key out")
	}
	if !c.Address.Addr().IsLoopback() {
		return fmt.Errorf("admin.address: %s is not a loopback address: use one of 127.0.0.0/8 or [::1]", c.Address)
	}
	return nil
}

// Server answers from functions of the process.
type Server struct {
	// Pending names what the process still waits for; empty means ready.
	Pending func() []string
	// Details is shown beside readiness and changes nothing about it; may be nil.
	Details func() map[string]any
	// State is what /state shows as JSON: of one service, unless service is empty. The
	// error says that there is no such service.
	State func(service string) (any, error)
	// Registry holds the metrics.
	Registry *prometheus.Registry
	// More is what the process answers beside what every process does.
	More []Endpoint
}

// Endpoint is one thing that a process answers. Answers are JSON with keys in
// camelCase (metrics and profiles apart); an error is {"error": "..."} with a
// status of 4xx or 5xx. GET changes nothing, POST does.
type Endpoint struct {
	Pattern string // method and path, as http.ServeMux takes it
	Doc     string
	Handler http.HandlerFunc
}

// Endpoints lists everything that s answers.
func (s *Server) Endpoints() []Endpoint {
	metrics := promhttp.HandlerFor(s.Registry, promhttp.HandlerOpts{})
	return append([]Endpoint{
		{"GET /{$}", "this list", Only(s.index)},
		{"GET /healthz/live", "200", Only(live)},
		{"GET /healthz/ready", "200 if the process is ready, otherwise 503 and what it waits for", Only(s.readiness(s.Details))},
		{"GET /state", "what decisions are made from; of one service with ?service=<hostname>", s.state},
		{"GET /metrics", "metrics, in Prometheus's text format", Only(metrics.ServeHTTP, "name[]")},
		{"GET /debug/pprof/", "profiles of the Go runtime", Only(pprof.Index, "debug", "gc", "seconds")},
		{"GET /debug/pprof/profile", "profile of the processor for ?seconds=", Only(pprof.Profile, "seconds")},
		{"GET /debug/pprof/trace", "execution trace for ?seconds=", Only(pprof.Trace, "seconds")},
	}, s.More...)
}

// Answer writes v as JSON.
func Answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false) // read by people, and never as HTML
	enc.Encode(v)            // who asked has gone, if this fails
}

// Fail writes err as JSON.
func Fail(w http.ResponseWriter, status int, err error) {
	Answer(w, status, map[string]string{"error": err.Error()})
}

// Parameters refuses the first parameter of r, in alphabetical order, that is not
// among known: one that is mistyped must not be taken for one that was left out.
func Parameters(r *http.Request, known ...string) error {
	for _, k := range slices.Sorted(maps.Keys(r.URL.Query())) {
		if !slices.Contains(known, k) {
			return fmt.Errorf("%q is no parameter of %s %s: it takes %s", k, r.Method, r.URL.Path, cmp.Or(strings.Join(known, ", "), "none"))
		}
	}
	return nil
}

// Only is h for requests whose parameters are among known; others get 400.
func Only(h http.HandlerFunc, known ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := Parameters(r, known...); err != nil {
			Fail(w, http.StatusBadRequest, err)
			return
		}
		h(w, r)
	}
}

// liveHeap is what was left of the heap at the last garbage collection: unlike the
// size of the heap, it does not depend on when that was.
var liveHeap = regexp.MustCompile("^/gc/heap/live:bytes$")

// ConnectBuckets are those of histograms of how long connecting took, in seconds: from a warm
// path inside a cluster to a few attempts that hung.
var ConnectBuckets = prometheus.ExponentialBuckets(0.0005, 2, 16)

// NewRegistry returns a registry that holds the metrics of the Go runtime and of
// the operating system's process, by the names that every Go program has.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.GoRuntimeMetricsRule{Matcher: liveHeap})), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_build_info", Help: "Always 1. Labels: version, goversion.",
			ConstLabels: prometheus.Labels{"version": buildinfo.Version(), "goversion": runtime.Version()}}, func() float64 { return 1 }))
	return r
}

// Listen binds the address, so that a conflict is an error at start.
func Listen(c Config) (net.Listener, error) {
	l, err := net.Listen("tcp", c.Address.String())
	if err != nil {
		return nil, fmt.Errorf("admin.address: listen on %s: %w: choose a free loopback port", c.Address, err)
	}
	return l, nil
}

// Run serves l until ctx ends.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	srv := &http.Server{Handler: mux(s.Endpoints()), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin: serve %s: %w", l.Addr(), err)
	}
	return nil
}

func mux(endpoints []Endpoint) *http.ServeMux {
	m := http.NewServeMux()
	for _, e := range endpoints {
		m.HandleFunc(e.Pattern, e.Handler)
	}
	return m
}

func (s *Server) index(w http.ResponseWriter, _ *http.Request) {
	type line struct {
		Endpoint string `json:"endpoint"`
		Answers  string `json:"answers"`
	}
	var list []line
	for _, e := range s.Endpoints() {
		list = append(list, line{strings.TrimSuffix(e.Pattern, "{$}"), e.Doc})
	}
	Answer(w, http.StatusOK, list)
}

// readiness answers whether the process is ready, with what details returns beside it.
func (s *Server) readiness(details func() map[string]any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		body, status := map[string]any{}, http.StatusOK
		if details != nil {
			maps.Copy(body, details())
		}
		pending := s.Pending()
		if body["ready"] = len(pending) == 0; len(pending) > 0 {
			body["pending"], status = pending, http.StatusServiceUnavailable
		}
		Answer(w, status, body)
	}
}

// readyAfter is how long [Server.AwaitReady] waits before it says what is missing:
// certificates come a little later than the rest.
const readyAfter = time.Second

// AwaitReady returns true once nothing is pending, and false if ctx ends before. If
// that takes longer than a second it calls late, once, with what is pending then.
func (s *Server) AwaitReady(ctx context.Context, late func(pending []string)) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for patience := time.Now().Add(readyAfter); ; {
		if ctx.Err() != nil {
			return false
		}
		pending := s.Pending()
		if len(pending) == 0 {
			return true
		}
		if late != nil && time.Now().After(patience) {
			late(pending)
			late = nil
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (s *Server) state(w http.ResponseWriter, r *http.Request) {
	if err := Parameters(r, "service"); err != nil {
		Fail(w, http.StatusBadRequest, err)
		return
	}
	state, err := s.State(r.URL.Query().Get("service"))
	if err != nil {
		Fail(w, http.StatusNotFound, err)
		return
	}
	Answer(w, http.StatusOK, state)
}
