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
	vain []string // warnings of what the configuration names
	new  error
	run  func(context.Context) error
	hups chan struct{} // one value for each Reload
}

type runner config

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
		Instance: func(config) string { return "west/gw-1" },
		Log:      func(c config) logging.Config { return c.log },
		New:      func(c config, _ zerolog.Logger) (Runner, error) { return runner(c), c.new },
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
		{"help", []string{"--help"}, config{}, OK, "-config"},
		{"version", []string{"--version"}, config{}, OK, "tester "},
		{"no configuration", nil, config{}, Usage, "--config FILE"},
		{"unknown flag", []string{"--confg", "x"}, config{}, Usage, "confg"},
		{"an argument too many", []string{"--config", "x", "y"}, config{}, Usage, "one configuration file"},
		{"bad configuration", []string{"--config", "x.yaml"}, config{load: broken}, Usage, "tester: x.yaml: no such luck"},
		{"bad log level", []string{"--config", "x.yaml"}, config{log: logging.Config{Level: "loud"}}, Usage, `log.level: "loud"`},
		{"cannot start", []string{"--config", "x.yaml"}, config{new: broken}, Start, "cannot start"},
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

// With --check a configuration is read and nothing is started.
func TestCheckReadsTheConfigurationAlone(t *testing.T) {
	for name, x := range map[string]struct {
		c    config
		code int
		says string
	}{
		"well":     {config{new: errors.New("started")}, OK, ""},
		"warnings": {config{warn: []string{"careful"}, new: errors.New("started")}, OK, "careful"},
		"mistakes": {config{load: errors.New("names no network")}, Usage, "names no network"},
		"problems": {config{left: errors.New("mesh.yaml:7: no such action"), new: errors.New("started")}, OK, "tester: starts, with problems:\nmesh.yaml:7: no such action\n"},
		"in vain":  {config{vain: []string{"policy a selects no workload"}, new: errors.New("started")}, OK, "tester: warning: policy a selects no workload\n"},
	} {
		var b bytes.Buffer
		if code := Main(spec(x.c), []string{"--config", "x.yaml", "--check"}, &b); code != x.code || !strings.Contains(b.String(), x.says) || x.says == "" && b.Len() > 0 {
			t.Errorf("%s: %d, %q; want %d and %q", name, code, &b, x.code, x.says)
		}
	}
}
