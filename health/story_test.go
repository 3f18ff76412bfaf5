package health

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the expectations in testdata")

// Each story is a list of "<time> <command>" lines about one key; what follows
// the bar is the edge and the state afterwards. Together they cover every row of
// the breaker's state machine that is not an operator's pin.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.story")
	if err != nil || len(files) < 15 {
		t.Fatalf("found %d stories (%v), want at least 15", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".story"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := retell(t, string(data))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(data) {
				t.Errorf("%s: got\n%s\nwant\n%s", file, got, data)
			}
		})
	}
}

// retell plays a story without jitter and writes it with what happened.
func retell(t *testing.T, story string) string {
	tr := NewTracker[Key](DefaultConfig(), nil)
	key, start := Key{Endpoint: 7, Port: 8080}, time.Unix(1000, 0)
	attempts := map[string]Attempt{}
	var out strings.Builder
	for line := range strings.Lines(story) {
		command, _, _ := strings.Cut(strings.TrimSpace(line), " |")
		words := strings.Fields(command)
		if len(words) == 0 || words[0][0] == '#' {
			out.WriteString(line)
			continue
		}
		at, err := time.ParseDuration(words[0])
		if err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		now, edge := start.Add(at), NoEdge
		switch words[1] {
		case "begin":
			attempts[words[2]] = tr.Begin(key, now)
		case "end":
			edge = tr.End(key, attempts[words[2]], outcomeNamed(t, words[3]), now)
		case "readmit":
			edge = tr.Readmit(key, now)
		case "allow-probe":
			tr.AllowProbe(key, now)
		case "forget":
			tr.Forget(key)
		case "show":
		default:
			t.Fatalf("line %q: unknown command", line)
		}
		fmt.Fprintf(&out, "%-36s | %s\n", strings.Join(words, " "), tell(tr, key, edge, start, now))
	}
	return out.String()
}

func tell(tr *Tracker[Key], k Key, edge Edge, start, now time.Time) string {
	s := tr.State(k, now)
	text := fmt.Sprintf("%s health=%.3f failures=%d ejections=%d", s.Phase, s.Health, s.Consecutive, s.Ejections)
	if !s.Until.IsZero() {
		text += fmt.Sprintf(" until=%v", s.Until.Sub(start))
	}
	if !tr.Usable(k, now) {
		text += " unusable"
	}
	if edge != NoEdge {
		text += fmt.Sprintf(" <%s>", edge)
	}
	return text
}

func outcomeNamed(t *testing.T, name string) Outcome {
	for _, o := range []Outcome{Success, Failure, Neutral} {
		if o.String() == name {
			return o
		}
	}
	t.Fatalf("unknown outcome %q", name)
	return Neutral
}
