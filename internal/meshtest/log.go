package meshtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

func init() { zerolog.TimeFieldFormat = time.RFC3339Nano }

// Line is one line of a process's log.
type Line map[string]any

// Has reports whether the line says all of pairs: key, value, key, value. Values
// are compared as they print, so 8080 and "8080" are the same.
func (l Line) Has(pairs ...any) bool {
	for i := 0; i+1 < len(pairs); i += 2 {
		v, ok := l[pairs[i].(string)]
		if !ok || fmt.Sprint(v) != fmt.Sprint(pairs[i+1]) {
			return false
		}
	}
	return true
}

// Text is a field as it prints, empty if it is missing.
func (l Line) Text(key string) string {
	if l[key] == nil {
		return ""
	}
	return fmt.Sprint(l[key])
}

func (l Line) has(key string) bool { _, ok := l[key]; return ok }

// Time is the instant of the line.
func (l Line) Time() time.Time {
	at, _ := time.Parse(time.RFC3339Nano, l.Text("time"))
	return at
}

// Log keeps what one process writes. Safe for concurrent use.
type Log struct {
	mu    sync.Mutex
	lines []Line
	twice string       // the first line that has a key twice
	raw   bytes.Buffer // without debug lines: for people
}

// Write takes whole lines of JSON, as zerolog writes them.
func (g *Log) Write(p []byte) (int, error) {
	l := Line{}
	d := json.NewDecoder(bytes.NewReader(p))
	d.UseNumber()
	if err := d.Decode(&l); err != nil {
		l = Line{"message": string(p)}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lines = append(g.lines, l)
	if g.twice == "" && repeats(p) {
		g.twice = string(p)
	}
	if l["level"] != "debug" && g.raw.Len() < 1<<20 {
		g.raw.Write(p)
	}
	return len(p), nil
}

// Find returns the lines with this message that say all of pairs.
func (g *Log) Find(message string, pairs ...any) []Line {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []Line
	for _, l := range g.lines {
		if l.Has("message", message) && l.Has(pairs...) {
			out = append(out, l)
		}
	}
	return out
}

// Above returns the lines at warn and error.
func (g *Log) Above() []Line {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []Line
	for _, l := range g.lines {
		if l.Has("level", "warn") || l.Has("level", "error") {
			out = append(out, l)
		}
	}
	return out
}

// Await waits for a line with this message that says all of pairs and returns
// the first.
func (g *Log) Await(t testing.TB, message string, pairs ...any) Line {
	t.Helper()
	var found []Line
	Eventually(t, fmt.Sprintf("log line %q with %v", message, pairs), func() bool {
		found = g.Find(message, pairs...)
		return len(found) > 0
	})
	return found[0]
}

// tail returns the last n lines above debug, as written.
func (g *Log) tail(n int) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	lines := strings.SplitAfter(g.raw.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-n-1):], "")
}

// checkKeys fails the test if a line has a key twice: of these, readers keep one.
func (g *Log) checkKeys(t testing.TB, process string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.twice != "" {
		t.Errorf("%s: a line of its log has a key twice: %s", process, g.twice)
	}
}

// repeats reports whether the JSON object in p has a key twice.
func repeats(p []byte) bool {
	d := json.NewDecoder(bytes.NewReader(p))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return false
	}
	seen := map[string]bool{}
	for d.More() {
		key, err := d.Token()
		name, ok := key.(string)
		if err != nil || !ok {
			return false
		}
		if seen[name] {
			return true
		}
		seen[name] = true
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return false
		}
	}
	return false
}
