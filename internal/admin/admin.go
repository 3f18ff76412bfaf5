// Package admin serves what operators ask a process: readiness, metrics,
// profiles, and the state its decisions are made from, on a loopback address.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Config is the part of a process's YAML that places its admin server.
type Config struct {
	Address netip.AddrPort `yaml:"address" default:"127.0.0.1:15000" doc:"loopback address of the admin server: /healthz/ready, /metrics, /state, /debug/pprof" env:"ISTHMUS_ADMIN_ADDRESS"`
}

// Validate refuses an address that others could reach.
func (c Config) Validate() error {
	if c.Address.IsValid() && !c.Address.Addr().IsLoopback() {
		return fmt.Errorf("admin.address: %s is not a loopback address: use one of 127.0.0.0/8 or [::1]", c.Address)
	}
	return nil
}

// Server answers from three functions of the process.
type Server struct {
	// Pending names what the process still waits for; empty means ready.
	Pending func() []string
	// State is what /state shows as JSON.
	State func() any
	// Registry holds the metrics.
	Registry *prometheus.Registry
}

// NewRegistry returns a registry that holds the metrics of the Go runtime and of
// the operating system's process, by the names that every Go program has.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
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
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz/ready", s.ready)
	mux.HandleFunc("GET /state", s.state)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.Registry, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin: serve %s: %w", l.Addr(), err)
	}
	return nil
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if p := s.Pending(); len(p) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		json.NewEncoder(w).Encode(map[string]any{"ready": false, "pending": p})
		return
	}
	json.NewEncoder(w).Encode(map[string]any{"ready": true})
}

func (s *Server) state(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.Encode(s.State())
}
