package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// filed is a configuration that comes from a file.
type filed struct {
	Port int            `yaml:"port"`
	Log  logging.Config `yaml:"log"`
}

func (filed) Validate() ([]string, error) { return nil, nil }

// runReloading runs a process, lets do send it what it likes, and returns the lines of
// its log. reloaded has a value after each reload.
func runReloading(t *testing.T, do func(path string, log zerolog.Logger, reloaded <-chan struct{})) []map[string]any {
	t.Helper()
	path := filepath.Join(t.TempDir(), "process.yaml")
	write(t, path, "port: 1\nlog: {level: info, format: json}\n")
	reloaded := make(chan struct{}, 10)
	out := stderr(t, func() {
		code := Main(Spec[filed]{
			Name:     "tester",
			Instance: func(filed) string { return "west/gw-1" },
			Load:     func(path string) (filed, []string, error) { return strictyaml.LoadValid(path, filed{}) },
			Log:      func(c filed) logging.Config { return c.Log },
			Open: func(_ filed, log zerolog.Logger) (Runner, error) {
				return runner{hups: reloaded, run: func(context.Context) error { do(path, log, reloaded); return nil }}, nil
			},
		}, []string{"--config", path}, &bytes.Buffer{})
		if code != OK {
			t.Errorf("exit code %d; want %d", code, OK)
		}
	})
	var lines []map[string]any
	for line := range strings.Lines(out) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		lines = append(lines, m)
	}
	return lines
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func messages(lines []map[string]any) (m []string) {
	for _, l := range lines {
		m = append(m, l["message"].(string))
	}
	return m
}

func TestSIGHUPReadsTheLogLevelAndTheFilesAgain(t *testing.T) {
	lines := runReloading(t, func(path string, log zerolog.Logger, reloaded <-chan struct{}) {
		derived := log.With().Str("part", "pool").Logger()
		derived.Debug().Msg("unseen")
		write(t, path, "port: 2\nlog: {level: debug, format: json}\n")
		syscall.Kill(os.Getpid(), syscall.SIGHUP)
		<-reloaded
		derived.Debug().Msg("seen")
		write(t, path, "port: 2\nlog: {level: loud}\n")
		syscall.Kill(os.Getpid(), syscall.SIGHUP)
		<-reloaded
		derived.Debug().Msg("still seen")
	})
	want := "these keys changed and take effect only when the process is started again, configuration read again, seen, configuration refused, keeping the one in force, still seen"
	if got := strings.Join(messages(lines), ", "); got != want {
		t.Fatalf("logged %s\nwant   %s", got, want)
	}
	if keys := lines[0]["keys"].([]any); len(keys) != 1 || keys[0] != "port" {
		t.Errorf("changed keys %v; want only port", keys)
	}
	if e := lines[3]["error"]; !strings.Contains(e.(string), "log.level") {
		t.Errorf("error %q does not name log.level", e)
	}
}

func TestSIGHUPNeverKills(t *testing.T) {
	s := spec(config{hups: make(chan struct{}, 10), run: func(context.Context) error { return nil }})
	arrived := make(chan os.Signal, 1)
	signal.Notify(arrived, syscall.SIGHUP)
	defer signal.Stop(arrived)
	s.Load = func(string) (config, []string, error) { // at start, before there is anything to reload
		syscall.Kill(os.Getpid(), syscall.SIGHUP)
		<-arrived // not in the next test
		return config{}, nil, errors.New("bad file")
	}
	if got := Main(s, []string{"--config", "x"}, &bytes.Buffer{}); got != Usage {
		t.Errorf("exit code %d; want %d", got, Usage)
	}
}

func TestEveryLineNamesComponentAndInstance(t *testing.T) {
	lines := runReloading(t, func(path string, log zerolog.Logger, reloaded <-chan struct{}) {
		derived := log.With().Str("part", "pool").Logger()
		derived.Info().Msg("said")
		syscall.Kill(os.Getpid(), syscall.SIGHUP)
		<-reloaded
	})
	if len(lines) != 2 {
		t.Fatalf("%d lines; want 2", len(lines))
	}
	for _, l := range lines {
		if l["component"] != "tester" || l["instance"] != "west/gw-1" {
			t.Errorf("line %v does not name component and instance", l)
		}
	}
}

// A configuration that the process could not start with is refused; what is wrong with
// another file is not the configuration's fault, and the log level is taken.
func TestSIGHUPRefusesWhatCouldNotStart(t *testing.T) {
	for name, c := range map[string]struct {
		wrong error
		want  string
	}{
		"a name that is not known": {errors.New("port: 1 is nobody's"), "configuration refused, keeping the one in force"},
		"another file":             {&strictyaml.Error{File: "mesh.yaml", Line: 3, Message: "bad"}, "configuration read again"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "process.yaml")
			write(t, path, "port: 1\nlog: {level: info, format: json}\n")
			var out bytes.Buffer
			log := zerolog.New(&out)
			file, err := os.Create(filepath.Join(t.TempDir(), "log")) // the sink closes it
			if err != nil {
				t.Fatal(err)
			}
			_, sink, err := logging.New(logging.Config{Level: "info", Format: "json"}, file)
			if err != nil {
				t.Fatal(err)
			}
			defer sink.Close()
			s := Spec[filed]{Log: func(c filed) logging.Config { return c.Log }, Load: func(path string) (filed, []string, error) {
				return strictyaml.LoadValid(path, filed{}, func(filed) error { return c.wrong })
			}}
			(&reloader[filed]{spec: s, path: path, started: filed{Port: 1}, runner: runner{hups: make(chan struct{}, 1)}, log: log, sink: sink}).reload()
			if !strings.Contains(out.String(), `"message":"`+c.want+`"`) {
				t.Errorf("logged %s; want %q", out.String(), c.want)
			}
		})
	}
}
