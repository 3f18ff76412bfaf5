package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestRefusesAnAddressThatOthersCouldReach(t *testing.T) {
	err := Config{Address: netip.MustParseAddrPort("10.0.0.1:15000")}.Validate()
	if err == nil || !strings.Contains(err.Error(), "admin.address") || !strings.Contains(err.Error(), "10.0.0.1:15000") {
		t.Errorf("got %v; want an error that names field and value", err)
	}
	if err := (Config{Address: netip.MustParseAddrPort("127.3.2.1:15000")}).Validate(); err != nil {
		t.Errorf("loopback refused: %v", err)
	}
	if err := (Config{}).Validate(); err == nil || !strings.Contains(err.Error(), "admin.address: is empty") {
		t.Errorf("got %v; want that an empty address is refused", err)
	}
}

func TestServesReadinessMetricsAndState(t *testing.T) {
	pending := []string{"identity"}
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_test_total"})
	reg.MustRegister(c)
	s := &Server{
		Details: func() map[string]any { return map[string]any{"discovery": map[string]int{"revision": 7}} },
		More: []Endpoint{{"POST /more", "more of it", func(w http.ResponseWriter, _ *http.Request) {
			Fail(w, http.StatusConflict, errors.New("no more"))
		}}},
		Pending: func() []string { return pending }, State: func(string) (any, error) { return map[string]int{"answer": 42}, nil }, Registry: reg}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l) }()

	check := func(path string, status int, want string) {
		t.Helper()
		r, err := http.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, _ := io.ReadAll(r.Body)
		if r.StatusCode != status || !strings.Contains(string(body), want) {
			t.Errorf("GET %s = %d %q; want %d containing %q", path, r.StatusCode, body, status, want)
		}
	}
	check("/healthz/ready", http.StatusServiceUnavailable, "identity")
	pending = nil
	check("/healthz/ready", http.StatusOK, "true")
	check("/healthz/ready", http.StatusOK, `"revision": 7`)
	check("/", http.StatusOK, `"endpoint": "POST /more"`)
	check("/", http.StatusOK, `"endpoint": "GET /state"`)
	check("/more", http.StatusMethodNotAllowed, "")
	check("/nowhere", http.StatusNotFound, "")
	if r, err := http.Post("http://"+l.Addr().String()+"/more", "", nil); err != nil {
		t.Error(err)
	} else if body, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusConflict || !strings.Contains(string(body), `"error": "no more"`) {
		t.Errorf("POST /more = %d %q", r.StatusCode, body)
	}
	check("/metrics", http.StatusOK, "isthmus_test_total 0")
	check("/state", http.StatusOK, `"answer": 42`)
	for _, path := range []string{"/", "/healthz/ready", "/metrics", "/state", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile", "/debug/pprof/trace"} {
		check(path+"?second=1", http.StatusBadRequest, `\"second\" is no parameter of GET `+path)
	}
	check("/debug/pprof/heap?debug=1", http.StatusOK, "heap profile")
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v after cancel, want nil", err)
	}
}

func TestAwaitReadyNamesWhatIsMissingOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &Server{Pending: func() []string {
			if time.Since(began) < 10*time.Second {
				return []string{"certificate"}
			}
			return nil
		}}
		var said [][]string
		if !s.AwaitReady(t.Context(), func(pending []string) { said = append(said, pending) }) || time.Since(began) < 10*time.Second {
			t.Errorf("ready after %s", time.Since(began))
		}
		if len(said) != 1 || !slices.Equal(said[0], []string{"certificate"}) {
			t.Errorf("said %q; want once what is missing", said)
		}
		began = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), readyAfter/2)
		defer cancel()
		if s.AwaitReady(ctx, func([]string) { t.Error("said at once what was missing") }) {
			t.Error("ready though something is missing")
		}
	})
}

func TestMetricsTellOfTheProcess(t *testing.T) {
	families, err := NewRegistry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	for _, want := range []string{"go_goroutines", "go_memstats_heap_alloc_bytes", "go_gc_heap_live_bytes", "process_open_fds", "process_resident_memory_bytes"} {
		if !slices.Contains(names, want) {
			t.Errorf("no metric %s among %v", want, names)
		}
	}
}
