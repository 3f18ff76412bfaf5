package hbone

import (
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// A trace has what both ends sent, in order and readable, of the sessions it was
// turned on for, and no more lines than it may.
func TestTraceShowsTheFramesOfOneSession(t *testing.T) {
	trace := new(FrameTrace)
	other := newRig(t, rigConfig{client: Config{Trace: trace}})
	r := newRig(t, rigConfig{client: Config{Trace: trace}, server: Config{Trace: trace}})
	trace.Start(r.client.LocalAddr().String() + ">")
	for _, s := range []*Session{other.client, r.client} {
		st, _, err := s.Open(t.Context(), &Request{Authority: "app.default:80", Header: Header{"isthmus-avoid": "12", "baggage": "secret"}})
		check(t, err)
		st.Write([]byte("hello"))
		io.ReadFull(st, make([]byte, 5))
		st.Reset(http2.ErrCodeCancel)
	}
	lines, dropped := trace.Lines()
	text := strings.Join(lines, "\n")
	want := []string{
		`\+ header block stream=1 :method="CONNECT" :authority="app.default:80" baggage="…" isthmus-avoid="12"`,
		`> HEADERS stream=1 flags=0x4 len=\d+`,
		`< HEADERS stream=1`, `< header block stream=1 :status="200"`,
		`> DATA stream=1 len=5`,
		`< DATA stream=1 len=5`,
	}
	rest := text
	for _, w := range want {
		at := regexp.MustCompile(w).FindStringIndex(rest)
		if at == nil {
			t.Fatalf("no %s, in this order, in\n%s", w, text)
		}
		rest = rest[at[1]:]
	}
	if dropped != 0 || strings.Contains(text, "secret") || strings.Contains(text, "server") {
		t.Errorf("%d lines dropped, too much is shown, or another session:\n%s", dropped, text)
	}
	eventually(t, "the reset is traced", func() bool {
		lines, _ := trace.Lines()
		return strings.Contains(strings.Join(lines, "\n"), "> RST_STREAM stream=1 len=4 code=CANCEL")
	})
	trace.Start("")
	before := trace.n
	st := open(t, r.client)
	st.Reset(http2.ErrCodeCancel)
	if trace.n != before || trace.Match() != "" {
		t.Error("a trace that was stopped goes on")
	}
	for range 2 * traceLines {
		trace.add("x")
	}
	if lines, dropped := trace.Lines(); len(lines) != traceLines || dropped < traceLines {
		t.Errorf("%d lines kept and %d dropped, want %d kept", len(lines), dropped, traceLines)
	}
}

// Each switch has an effect: with it the decision is the other one.
func TestDisabledHeuristicsDecideNothing(t *testing.T) {
	st := &Stream{}
	for _, off := range []bool{false, true} {
		p := path{off: off}
		for range 20 {
			p.noteFrame(st, 100)
		}
		if got := p.interactive.Load() != 0; got == off {
			t.Errorf("interactive disabled %v: small messages are seen: %v", off, got)
		}
		cfg := DefaultConfig()
		cfg.Disable.FirstWindow, cfg.Disable.LongPath, cfg.Disable.Bulk, cfg.Disable.Lively = off, off, off, off
		cfg.Disable.SmallFirst = off
		cfg = cfg.withDefaults()
		if got := cfg.FirstWindow == cfg.StreamWindow; got != off {
			t.Errorf("first-window disabled %v: whole window at once: %v", off, got)
		}
		cfg.Disable.FirstWindow, cfg.FirstWindow = false, 1<<20
		_, s := rawServer(t, cfg)
		s.path.observeRTT(80e6)
		s.mu.Lock()
		got := s.newStreamLocked(99)
		s.openWholeWindowLocked(got)
		size := got.recv.window.Size
		delete(s.streams, 99)
		for range 100 {
			s.noteBulkLocked(maxPayload)
		}
		s.send.data.addData(nil, make([]byte, 2*maxPayload), 0)
		s.send.busy, s.send.limit = true, pendingMax/4
		got.send.window, s.send.window = 1<<20, 1<<20
		n, _, _ := s.send.tryGrant(&got.send, 100, false)
		s.send.data.clear()
		s.send.busy = false
		bulk := s.bulk.Congested(time.Now())
		s.mu.Unlock()
		if whole := size == cfg.StreamWindow; whole == off {
			t.Errorf("long-path disabled %v: whole window at once: %v", off, whole)
		}
		if (n == 0) != off {
			t.Errorf("small-first disabled %v: %d bytes out of turn", off, n)
		}
		if bulk == off {
			t.Errorf("bulk disabled %v: bulk is seen: %v", off, bulk)
		}
		if s.Lively() == off {
			t.Errorf("lively disabled %v: session is lively: %v", off, s.Lively())
		}
	}
}
