package hbone

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// FrameTrace keeps the last frames of the sessions that it is turned on for, as
// lines to read. Off, it costs a session one load per read and write. The zero value
// is off; it is safe for concurrent use, and shared by all sessions of a process
// through Config.Trace.
type FrameTrace struct {
	match atomic.Pointer[string] // nil: off

	mu    sync.Mutex
	lines [traceLines]string // a ring
	n     uint64             // lines ever
}

// traceLines bounds a trace: some hundred KiB.
const traceLines = 4096

// Start traces the sessions whose name holds match: it is made of the side, the
// addresses and the peer's SPIFFE ID, such as
//
//	#12 client 10.1.0.7:41022>10.2.0.9:15008 spiffe://…/ns/default/sa/app
//
// so that an address, an identity or "#12 " chooses. Empty stops; what was traced
// stays until the next Start.
func (t *FrameTrace) Start(match string) {
	if match == "" {
		t.match.Store(nil)
		return
	}
	t.mu.Lock()
	clear(t.lines[:])
	t.n = 0
	t.mu.Unlock()
	t.match.Store(&match)
}

// Match is what is traced, empty if nothing is.
func (t *FrameTrace) Match() string {
	if m := t.match.Load(); m != nil {
		return *m
	}
	return ""
}

// Lines returns the last lines, oldest first, and how many were before them.
func (t *FrameTrace) Lines() (lines []string, dropped uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := uint64(0)
	if t.n > traceLines {
		first = t.n - traceLines
	}
	for i := first; i < t.n; i++ {
		lines = append(lines, t.lines[i%traceLines])
	}
	return lines, first
}

func (t *FrameTrace) add(line string) {
	t.mu.Lock()
	t.lines[t.n%traceLines] = line
	t.n++
	t.mu.Unlock()
}

var sessionNumber atomic.Uint64

// traceName is how a session is called in traces.
func (s *Session) traceName() string {
	side := "server"
	if s.client {
		side = "client"
	}
	if s.parent != nil {
		side += " inside #" + fmt.Sprint(s.parent.number)
	}
	return fmt.Sprintf("#%d %s %v>%v %v", s.number, side, s.t.LocalAddr(), s.t.RemoteAddr(), s.peerID.ID)
}

// traced returns the trace if it is on for this session, nil otherwise.
func (s *Session) traced() *FrameTrace {
	t := s.cfg.Trace
	if t == nil {
		return nil
	}
	m := t.match.Load()
	if m == nil || !strings.Contains(s.traceName(), *m) {
		return nil
	}
	return t
}

// traceFrame adds a frame: "<" was received, ">" is written now.
func (s *Session) traceFrame(t *FrameTrace, direction string, h wire.Header, detail string) {
	flags := ""
	if h.Flags != 0 {
		flags = fmt.Sprintf(" flags=%#x", h.Flags)
	}
	if detail != "" {
		detail = " " + detail
	}
	t.add(fmt.Sprintf("%s #%d %s %v stream=%d%s len=%d%s", time.Now().Format("15:04:05.000000"), s.number, direction, http2.FrameType(h.Kind), h.ID, flags, h.Length, detail))
}

// traceBurst adds the frames of p, which is about to be written.
func (s *Session) traceBurst(t *FrameTrace, p []byte) {
	if b := []byte(http2.ClientPreface); len(p) >= len(b) && string(p[:len(b)]) == http2.ClientPreface {
		t.add(fmt.Sprintf("%s #%d > client preface of %s", time.Now().Format("15:04:05.000000"), s.number, s.traceName()))
		p = p[len(b):]
	}
	for len(p) >= wire.HeaderLen {
		h := wire.ParseHeader(p)
		if len(p) < wire.HeaderLen+h.Length {
			return
		}
		s.traceFrame(t, ">", h, wire.Detail(h, p[wire.HeaderLen:wire.HeaderLen+h.Length]))
		p = p[wire.HeaderLen+h.Length:]
	}
}

// traceFields adds what a header block says: values of pseudo-headers and of our own
// headers, names of the others. Blocks of ours are told when they are queued, as "+".
func (s *Session) traceFields(t *FrameTrace, direction string, id uint32, fields []hpack.HeaderField) {
	var b strings.Builder
	for _, f := range fields {
		value := "…"
		if strings.HasPrefix(f.Name, ":") || strings.HasPrefix(f.Name, "isthmus-") {
			value = f.Value
		}
		fmt.Fprintf(&b, " %s=%q", f.Name, value[:min(len(value), 128)])
	}
	t.add(fmt.Sprintf("%s #%d %s header block stream=%d%s", time.Now().Format("15:04:05.000000"), s.number, direction, id, b.String()))
}
