package nodeproxy_test

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// traced opens a session with the pod and records its frames.
func (p *pair) traced(t *testing.T, pod *meshtest.Pod) (*hbone.Session, *hbone.FrameTrace) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), meshtest.ExchangeTimeout)
	defer cancel()
	conn, err := net.Dial("tcp4", pod.At(meshtest.HBONEPort).String())
	if err != nil {
		t.Fatal(err)
	}
	tt, err := hbone.ClientTLS(ctx, conn, p.TLS(p.shop.Identity(), "h2", pod.Identity()))
	if err != nil {
		t.Fatal(err)
	}
	cfg := hbone.DefaultConfig()
	cfg.Trace = &hbone.FrameTrace{}
	cfg.Trace.Start("client")
	s, err := hbone.NewClient(ctx, tt, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(nil) })
	return s, cfg.Trace
}

// goAways are the GOAWAY frames that a trace has received, in order.
func goAways(trace *hbone.FrameTrace) (out []string) {
	lines, _ := trace.Lines()
	for _, l := range lines {
		if strings.Contains(l, "GOAWAY") {
			out = append(out, l)
		}
	}
	return out
}

// echoes reports whether the stream carries bytes both ways.
func echoes(t *testing.T, st *hbone.Stream) {
	t.Helper()
	if _, err := st.Write([]byte("x")); err != nil {
		t.Errorf("write to an open stream: %v", err)
	}
	if _, err := st.Read(make([]byte, 1)); err != nil {
		t.Errorf("read from an open stream: %v", err)
	}
}

// A pod becomes terminating. Its sessions get the two GOAWAY frames of an orderly drain
// while it still serves, their streams go on, and they end with their last stream.
func TestTerminatingPodSendsGoAway(t *testing.T) {
	p := newPair(t, 2)
	for _, pod := range p.pods {
		pod.Serve(8080, func(c *net.TCPConn) { io.Copy(c, c) })
	}
	p.Start()
	pod := p.pods[0]
	open := func(s *hbone.Session) *hbone.Stream {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), meshtest.ExchangeTimeout)
		defer cancel()
		st, _, err := s.Open(ctx, &hbone.Request{Authority: pod.At(8080).String()})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	s, trace := p.traced(t, pod)
	st := open(s)
	echoes(t, st)
	if got := goAways(trace); len(got) > 0 {
		t.Fatalf("GOAWAY from a pod that is healthy: %q", got)
	}

	pod.Edit(func(w *discovery.Workload) { w.State = "terminating" })
	p.Write()
	t.Cleanup(func() {
		if t.Failed() {
			lines, _ := trace.Lines()
			t.Logf("frames:\n%s", strings.Join(lines, "\n"))
		}
	})
	meshtest.Eventually(t, "two GOAWAY frames", func() bool { return len(goAways(trace)) == 2 })
	if got := goAways(trace); !strings.Contains(got[0], "2147483647") || strings.Contains(got[1], "2147483647") {
		t.Errorf("GOAWAY frames %q; want the first for all streams and the second for those that are open", got)
	}
	if _, err := s.Start(&hbone.Request{Authority: pod.At(8080).String()}); err == nil {
		t.Error("a new stream was opened behind GOAWAY")
	}
	echoes(t, st)

	late, lateTrace := p.traced(t, pod)
	if got := goAways(lateTrace); len(got) > 0 {
		t.Errorf("GOAWAY before the first stream of a later session: %q", got)
	}
	lateStream := open(late)
	meshtest.Eventually(t, "two GOAWAY frames on a later session", func() bool { return len(goAways(lateTrace)) == 2 })
	echoes(t, lateStream)

	for _, x := range []*hbone.Stream{st, lateStream} {
		x.CloseWrite()
		for {
			if _, err := x.Read(make([]byte, 8)); err != nil {
				break
			}
		}
		x.Close()
	}
	for _, x := range []*hbone.Session{s, late} {
		meshtest.Eventually(t, "the session ends with its last stream", func() bool { return x.Err() != nil })
	}
}
