package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/internal/logging"
)

// config is what the processes of these tests are told.
type config struct {
	log  logging.Config
	load error
	warn []string
	left error
	gone []string // what is missing on this machine
	vain []string // warnings of what the configuration names
	open error
	bind error    // of Listen
	wait error    // of Check
	lack []string // of CheckWarnings
	run  func(context.Context) error
	hups chan struct{} // one value for each Reload
}

type runner config

func (r runner) Listen() error                 { return r.bind }
func (r runner) Check() error                  { return r.wait }
func (r runner) CheckWarnings() []string       { return r.lack }
func (r runner) Run(ctx context.Context) error { return r.run(ctx) }
func (r runner) Reload()                       { r.hups <- struct{}{} }

func spec(c config) Spec[config] {
	return Spec[config]{
		Name: "tester",
		Load: func(path string) (config, []string, error) {
			if c.load != nil {
				return c, nil, fmt.Errorf("%s: %w", path, c.load)
			}
			return c, c.warn, nil
		},
		Problems: func(c config) error { return c.left },
		Warnings: func(c config) []string { return c.vain },
		Absent:   func(_ string, c config) []string { return c.gone },
		Instance: func(config) string { return "west/gw-1" },
		Log:      func(c config) logging.Config { return c.log },
		Open:     func(c config, _ zerolog.Logger) (Runner, error) { return runner(c), c.open },
	}
}

// stderr collects what is written to the process's own standard error while do
// runs, where the logger writes.
func stderr(t *testing.T, do func()) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	real := os.Stderr
	os.Stderr = f
	defer func() { os.Stderr = real }()
	do()
	out, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestExitCodesTellWhatWentWrong(t *testing.T) {
	quiet := func(context.Context) error { return nil }
	broken := errors.New("no such luck")
	for _, c := range []struct {
		name string
		args []string
		cfg  config
		want int
		says string // on stderr or in the log
	}{
		{"help", []string{"--help"}, config{}, OK, "  --config string\n"},
		{"version", []string{"--version"}, config{}, OK, "tester "},
		{"no configuration", nil, config{}, Usage, "--config FILE"},
		{"unknown flag", []string{"--confg", "x"}, config{}, Usage, "confg"},
		{"an argument too many", []string{"--config", "x", "y"}, config{}, Usage, "one configuration file"},
		{"bad configuration", []string{"--config", "x.yaml"}, config{load: broken}, Usage, "tester: x.yaml: no such luck"},
		{"bad log level", []string{"--config", "x.yaml"}, config{log: logging.Config{Level: "loud"}}, Usage, `log.level: "loud"`},
		{"cannot start", []string{"--config", "x.yaml"}, config{open: broken}, Start, "cannot start"},
		{"cannot listen", []string{"--config", "x.yaml"}, config{bind: broken}, Start, "cannot start"},
		{"fails while running", []string{"--config", "x.yaml"}, config{run: func(context.Context) error { return broken }}, Failed, "no such luck"},
		{"ends in order", []string{"--config", "x.yaml"}, config{run: quiet, warn: []string{"ewmaAlpha is odd"}}, OK, "ewmaAlpha is odd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var direct bytes.Buffer
			got := -1
			logged := stderr(t, func() { got = Main(spec(c.cfg), c.args, &direct) })
			if got != c.want {
				t.Errorf("exit code %d; want %d", got, c.want)
			}
			if all := direct.String() + logged; !strings.Contains(all, c.says) {
				t.Errorf("it says %q; want it to say %q", all, c.says)
			}
		})
	}
}

func TestTheFirstSignalAsksToStop(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			run := func(ctx context.Context) error {
				if err := syscall.Kill(os.Getpid(), sig); err != nil {
					return err
				}
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(30 * time.Second):
					return errors.New("the signal did not end the context")
				}
			}
			if got := Main(spec(config{run: run}), []string{"--config", "x"}, &bytes.Buffer{}); got != OK {
				t.Errorf("exit code %d; want %d", got, OK)
			}
		})
	}
}

func TestVersionSaysSomething(t *testing.T) {
	if v := Version(); !strings.Contains(v, "go1") {
		t.Errorf("version %q does not name the Go release", v)
	}
}

// --check fails as a start does, except for sockets, which it does not open, and what a running
// process waits for.
func TestCheckFailsAsAStartDoes(t *testing.T) {
	broken := errors.New("no such luck")
	quiet := func(context.Context) error { return nil }
	for name, x := range map[string]struct {
		c           config
		code, start int
		says        string
	}{
		"well":     {config{run: quiet}, OK, OK, ""},
		"warnings": {config{run: quiet, warn: []string{"careful"}}, OK, OK, "tester: warning: careful\n"},
		"absent":   {config{run: quiet, gone: []string{"no such file"}}, OK, OK, "tester: warning: no such file\n"},
		"mistakes": {config{load: broken}, Usage, Usage, "no such luck"},
		"level":    {config{log: logging.Config{Level: "loud"}}, Usage, Usage, `log.level: "loud"`},
		"key":      {config{open: broken}, Start, Start, "tester: cannot start: no such luck\n"},
		"socket":   {config{bind: broken}, OK, Start, ""},
		"waits":    {config{run: quiet, wait: broken}, Start, OK, "tester: starts, but waits until this is fixed: no such luck\n"},
		"lacks":    {config{run: quiet, lack: []string{"no file of links"}}, OK, OK, "tester: warning: no file of links\n"},
		"problems": {config{run: quiet, left: errors.New("mesh.yaml:7: no such action\nmesh.yaml:9: odd")}, OK, OK, "tester: warning: mesh.yaml:7: no such action\ntester: warning: mesh.yaml:9: odd\n"},
		"in vain":  {config{run: quiet, vain: []string{"policy a selects no workload"}}, OK, OK, "tester: warning: policy a selects no workload\n"},
	} {
		var b bytes.Buffer
		if code := Main(spec(x.c), []string{"--config", "x.yaml", "--check"}, &b); code != x.code || !strings.Contains(b.String(), x.says) || x.says == "" && b.Len() > 0 {
			t.Errorf("%s: --check exits %d, %q; want %d and %q", name, code, &b, x.code, x.says)
		}
		code := -1
		stderr(t, func() { code = Main(spec(x.c), []string{"--config", "x.yaml"}, &bytes.Buffer{}) })
		if code != x.start {
			t.Errorf("%s: a start exits %d; want %d", name, code, x.start)
		}
	}
}

// --check-config reads no keys: they are on another machine.
func TestCheckConfigReadsNoKeys(t *testing.T) {
	var b bytes.Buffer
	c := config{open: errors.New("no key"), warn: []string{"careful"}, gone: []string{"no such file"}}
	if code := Main(spec(c), []string{"--config", "x.yaml", "--check-config"}, &b); code != OK || b.String() != "tester: warning: careful\n" {
		t.Errorf("exit %d, %q; want %d and the warning", code, &b, OK)
	}
}
