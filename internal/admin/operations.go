package admin

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// OperationsConfig is the section of a process's YAML with the address for Prometheus and
// the kubelet's probes. The zero OperationsConfig has none.
type OperationsConfig struct {
	Address netip.AddrPort `yaml:"address" doc:"address that answers GET /metrics, /healthz/live and /healthz/ready only, for Prometheus and kubelet probes. Any address, such as 0.0.0.0:15020 for every address of the pod, of both families. Plain HTTP without authentication. Left out, only admin.address answers these" env:"ISTHMUS_OPERATIONS_ADDRESS"`
}

const (
	// maxOperations is how many connections are open at once. Prometheus keeps one or two,
	// and a kubelet opens one for each probe.
	maxOperations = 128
	// maxScrapes is how many scrapes are answered at once; more get 503. Each is a copy of
	// all metrics.
	maxScrapes = 4
	// operationTime is how long one request may take to be read, or to be answered.
	operationTime = 10 * time.Second
)

// ListenOperations binds the address, so that a conflict is an error at start; nil if
// there is none.
func ListenOperations(c OperationsConfig) (net.Listener, error) {
	if !c.Address.IsValid() {
		return nil, nil
	}
	l, err := net.Listen("tcp", c.Address.String())
	if err != nil {
		return nil, fmt.Errorf("operations.address: listen on %s: %w: choose a free port, such as 0.0.0.0:15020", c.Address, err)
	}
	return l, nil
}

// Operations lists what s answers to other machines.
func (s *Server) Operations() []Endpoint {
	metrics := promhttp.HandlerFor(s.Registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
	return []Endpoint{
		{"GET /healthz/live", "200", Only(live)},
		{"GET /healthz/ready", "200 if the process is ready, otherwise 503 and what it waits for", Only(s.readiness(nil))},
		{"GET /metrics", "metrics, in Prometheus's text format", Only(metrics.ServeHTTP, "name[]")},
	}
}

// RunOperations serves l until ctx ends. Without a listener it waits for that.
func (s *Server) RunOperations(ctx context.Context, l net.Listener) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	crowd := &crowd{at: map[net.Conn]*list.Element{}}
	srv := &http.Server{Handler: mux(s.Operations()), ReadHeaderTimeout: operationTime / 2, ReadTimeout: operationTime, WriteTimeout: operationTime,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ConnState: crowd.change}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("operations: serve %s: %w", l.Addr(), err)
	}
	return nil
}

func live(w http.ResponseWriter, _ *http.Request) {
	Answer(w, http.StatusOK, map[string]bool{"live": true})
}

// crowd bounds the connections of a server to maxOperations: whoever can reach it may open
// them. The one that has been as it is for longest makes room, also one with a request:
// else 128 requests that never end would keep a kubelet's probe away. Safe for concurrent
// use.
type crowd struct {
	mu    sync.Mutex
	order list.List // of net.Conn, the last change of which is longest ago first
	at    map[net.Conn]*list.Element
}

// change is called by net/http for each new state of a connection.
func (c *crowd) change(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.at[conn]; e != nil {
		c.order.Remove(e)
		delete(c.at, conn)
	}
	if state == http.StateClosed || state == http.StateHijacked {
		return
	}
	c.at[conn] = c.order.PushBack(conn)
	if len(c.at) > maxOperations {
		longest := c.order.Remove(c.order.Front()).(net.Conn)
		delete(c.at, longest)
		longest.Close() // its goroutine calls again, with StateClosed
	}
}
