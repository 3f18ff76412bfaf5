package logging

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// written builds a logger on a file, lets use write to it, and returns the file.
func written(t *testing.T, c Config, use func(log func(level, msg string))) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	log, sink, err := New(c, f)
	if err != nil {
		t.Fatal(err)
	}
	use(func(level, msg string) {
		switch level {
		case "debug":
			log.Debug().Msg(msg)
		case "info":
			log.Info().Str("key", "value").Msg(msg)
		case "error":
			log.Error().Msg(msg)
		}
	})
	sink.Close()
	if sink.Lost() != 0 {
		t.Errorf("%d lines lost to a file", sink.Lost())
	}
	out, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func all(log func(level, msg string)) {
	for _, l := range []string{"debug", "info", "error"} {
		log(l, "said "+l)
	}
}

func TestAFileGetsJSONWithInstantLevelAndMessage(t *testing.T) {
	for _, format := range []string{"json", "auto", ""} {
		out := written(t, Config{Format: format}, all)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if len(lines) != 2 {
			t.Fatalf("format %q: %d lines %q; want info and error", format, len(lines), out)
		}
		var got map[string]string
		if err := json.Unmarshal([]byte(lines[0]), &got); err != nil {
			t.Fatalf("format %q: %v in %q", format, err, lines[0])
		}
		if got["level"] != "info" || got["message"] != "said info" || got["key"] != "value" {
			t.Errorf("format %q: %v", format, got)
		}
		if _, err := time.Parse(time.RFC3339Nano, got["time"]); err != nil {
			t.Errorf("format %q: time: %v", format, err)
		}
	}
}

func TestLevelSaysTheLeastThatIsWritten(t *testing.T) {
	for level, want := range map[string]int{"debug": 3, "info": 2, "WARN": 1, "error": 1} {
		out := written(t, Config{Level: level, Format: "json"}, all)
		if got := strings.Count(out, "\n"); got != want {
			t.Errorf("level %s: %d lines; want %d: %q", level, got, want, out)
		}
	}
}

func TestConsoleIsForPeopleAndWithoutColourInAFile(t *testing.T) {
	out := written(t, Config{Format: "console"}, all)
	if strings.Contains(out, "{") || strings.Contains(out, "\x1b[") || !strings.Contains(out, "said error") {
		t.Errorf("console output %q; want plain text", out)
	}
}

func TestBadLoggingConfigurationNamesFieldValueAndRemedy(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want []string
	}{
		{Config{Level: "loud"}, []string{"log.level", `"loud"`, "debug, info, warn or error"}},
		{Config{Format: "xml"}, []string{"log.format", `"xml"`, "json, console or auto"}},
	} {
		_, _, err := New(c.cfg, os.Stderr)
		if err == nil {
			t.Fatalf("%+v: no error", c.cfg)
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not name %q", err, want)
			}
		}
	}
}

func TestASlowSinkLosesLinesAndCountsThemInsteadOfStalling(t *testing.T) {
	r, w, err := os.Pipe() // nobody reads: it takes 64 KiB and then blocks
	if err != nil {
		t.Fatal(err)
	}
	log, sink, err := New(Config{Format: "json"}, w)
	if err != nil {
		t.Fatal(err)
	}
	const said = 3 * ringLines
	for range said {
		log.Info().Str("padding", strings.Repeat("x", 80)).Msg("one of many")
	}
	heard, last := make(chan int), ""
	go func() {
		n := 0
		for s := bufio.NewScanner(r); s.Scan(); last = s.Text() {
			n++
		}
		heard <- n
	}()
	sink.Close()
	w.Close()
	n := <-heard - 1 // the last line says how many were lost
	if want := fmt.Sprintf(`"lines":%d,`, sink.Lost()); !strings.Contains(last, want) || !strings.Contains(last, `"message":"log lines lost"`) {
		t.Errorf("the last line is %s, want it to say %s", last, want)
	}
	if n == said || int64(n)+sink.Lost() < said-1 {
		t.Errorf("%d lines heard and %d lost of %d; want some of each and none unaccounted for", n, sink.Lost(), said)
	}
	r.Close()
}
