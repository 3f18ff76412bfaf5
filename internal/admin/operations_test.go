package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// operate runs what s answers to other machines, until the test ends.
func operate(t *testing.T, s *Server) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.RunOperations(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func TestOperationsAnswerHealthAndMetricsAndNothingElse(t *testing.T) {
	pending := []string{"draining"}
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_test_total"}))
	s := &Server{Registry: reg, Pending: func() []string { return pending },
		Details: func() map[string]any { return map[string]any{"discovery": "secret"} },
		State:   func(string) (any, error) { return "secret", nil },
		More:    []Endpoint{{"POST /discovery/confirm", "", func(w http.ResponseWriter, _ *http.Request) { t.Error("a stranger has confirmed") }}}}
	address := operate(t, s)
	get := func(method, path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(body)
	}
	for _, c := range []struct {
		method, path string
		status       int
		says         string
	}{
		{"GET", "/healthz/live", 200, "true"},
		{"GET", "/healthz/ready", 503, "draining"},
		{"GET", "/metrics", 200, "isthmus_test_total 0"},
		{"POST", "/metrics", 405, ""},
		{"GET", "/", 404, ""},
		{"GET", "/state", 404, ""},
		{"GET", "/debug/pprof/", 404, ""},
		{"POST", "/discovery/confirm", 404, ""},
	} {
		status, body := get(c.method, c.path)
		if status != c.status || !strings.Contains(body, c.says) || strings.Contains(body, "secret") {
			t.Errorf("%s %s: %d %q; want %d with %q, and nothing secret", c.method, c.path, status, body, c.status, c.says)
		}
	}
	pending = nil
	if status, body := get("GET", "/healthz/ready"); status != 200 {
		t.Errorf("ready: %d %q; want 200", status, body)
	}
}

// Whoever can reach the address may open connections. They must not keep a kubelet away,
// which would kill the pod, nor take the descriptors that connections of applications need.
func TestConnectionsThatStayKeepNoProbeAway(t *testing.T) {
	address := operate(t, &Server{Registry: prometheus.NewRegistry(), Pending: func() []string { return nil }})
	var held []net.Conn
	for range 2*maxOperations + 1 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if len(held)%2 == 1 {
			io.WriteString(c, "G") // a request that never ends
		}
		held = append(held, c)
	}
	r, err := http.Get("http://" + address + "/healthz/live")
	if err != nil {
		t.Fatalf("a probe beside %d connections that stay: %v", len(held), err)
	}
	r.Body.Close()
	held[0].SetReadDeadline(time.Now().Add(operationTime / 4)) // before its own time is up
	if _, err := held[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest of %d connections is open still (%v): want at most %d", len(held), err, maxOperations)
	}
}

func TestOperationsAreOffWithoutAnAddress(t *testing.T) {
	l, err := ListenOperations(OperationsConfig{})
	if l != nil || err != nil {
		t.Fatalf("listener %v, %v; want none", l, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&Server{}).RunOperations(ctx, l); err != nil {
		t.Error(err)
	}
}
