// Package process is what the mains of the data path share: the --config flag,
// the logger, signals, and exit codes (2 usage or configuration, 3 could not
// start, 1 failed while running).
//
// SIGTERM and SIGINT ask the process to stop; a second one ends it at once.
// SIGHUP makes it read its files again and never ends it.
package process

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/internal/buildinfo"
	"github.com/isthmus-mesh/isthmus/internal/logging"
)

// Exit codes.
const (
	OK     = 0
	Failed = 1
	Usage  = 2
	Start  = 3
)

// ExitCodes says what they mean.
const ExitCodes = "Exit codes: 0 stopped in order, 1 failed while running, 2 wrong usage, or a mistake in the\nconfiguration or a discovery file that cannot be used (one per line, with file and line), 3 could not start (an\naddress in use, no certificate authority)."

// Runner is a process that has read all that it needs. Listen binds its sockets; Run is called
// once after that.
type Runner interface {
	Listen() error
	Run(ctx context.Context) error
}

// Reloader is a Runner that has files to read again when it is asked to, at any
// time between Listen and the end of Run. Reload does not wait.
type Reloader interface {
	Reload()
}

// Spec says how one kind of process is configured and built.
type Spec[C any] struct {
	// Name is the component in every log line.
	Name string
	// Instance names the one process among its like; it is in every log line.
	Instance func(C) string
	// Load reads the file at path; warnings go to the log.
	Load func(path string) (c C, warnings []string, err error)
	// Problems joins the mistakes in files that a configuration names and that keep no process
	// from starting. --check prints them; a running process reports them itself. May be nil.
	Problems func(C) error
	// Warnings lists parts of such files that have no effect. Used as Problems is. May be nil.
	Warnings func(C) []string
	// Absent lists what of this machine the configuration at path names and is not there, without
	// which the process starts. --check alone prints it. May be nil.
	Absent func(path string, c C) []string
	// Log picks the logging part of the configuration.
	Log func(C) logging.Config
	// Open reads every file and key that the process needs to start, and opens no socket.
	// --check ends after it, so what fails here fails --check with the same error and exit code.
	// A Runner with a method Check() error also reports what a running process would wait for,
	// and one with a method CheckWarnings() []string what it starts without.
	Open func(C, zerolog.Logger) (Runner, error)
}

// Main runs the process that s describes and returns its exit code.
func Main[C any](s Spec[C], args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet(s.Name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "Usage: %s --config FILE\n", s.Name)
		var b strings.Builder
		flags.SetOutput(&b)
		flags.PrintDefaults()
		fmt.Fprint(stderr, strings.ReplaceAll("\n"+b.String(), "\n  -", "\n  --")[1:]) // as the docs write them
		fmt.Fprintln(stderr, ExitCodes)
	}
	path := flags.String("config", "", "path of the YAML configuration (required)")
	version := flags.Bool("version", false, "print the version and exit")
	check := flags.Bool("check", false, "read all that the process needs to start (configuration, discovery file, keys, certificates), open no socket, and exit: with the exit code and the error of a start")
	checkConfig := flags.Bool("check-config", false, "check the configuration and the discovery file alone, as on another machine than that of the process, and exit")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return OK
	} else if err != nil {
		return Usage
	}
	if *version {
		fmt.Fprintln(stderr, s.Name, Version())
		return OK
	}
	if *path == "" || flags.NArg() > 0 {
		fmt.Fprintf(stderr, "%s: give one configuration file: %s --config FILE\n", s.Name, s.Name)
		return Usage
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	cfg, warnings, err := s.Load(*path)
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", s.Name, err)
		return Usage
	}
	log, sink, err := logging.New(s.Log(cfg), os.Stderr)
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", s.Name, err)
		return Usage
	}
	defer sink.Close()
	if *check || *checkConfig {
		if *check && s.Absent != nil {
			warnings = append(warnings, s.Absent(*path, cfg)...)
		}
		s.describe(cfg, warnings, stderr)
		if *checkConfig {
			return OK
		}
		r, err := s.Open(cfg, zerolog.Nop())
		if err != nil {
			fmt.Fprintf(stderr, "%s: cannot start: %v\n", s.Name, err)
			return Start
		}
		if c, ok := r.(interface{ CheckWarnings() []string }); ok {
			for _, w := range c.CheckWarnings() {
				fmt.Fprintf(stderr, "%s: warning: %s\n", s.Name, w)
			}
		}
		if c, ok := r.(interface{ Check() error }); ok {
			if err := c.Check(); err != nil {
				fmt.Fprintf(stderr, "%s: starts, but waits until this is fixed: %v\n", s.Name, err)
				return Start
			}
		}
		return OK
	}
	log = log.With().Str("component", s.Name).Str("instance", s.Instance(cfg)).Logger()
	for _, w := range warnings {
		log.Warn().Msg(w)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	r, err := s.Open(cfg, log)
	if err == nil {
		err = r.Listen()
	}
	if err != nil {
		log.Error().Err(err).Msg("cannot start")
		return Start
	}
	re := &reloader[C]{spec: s, path: *path, started: cfg, runner: r, log: log, sink: sink}
	ended := make(chan struct{})
	var reloading sync.WaitGroup
	reloading.Go(func() { re.run(hup, ended) })
	err = r.Run(ctx)
	close(ended)
	reloading.Wait()
	if err != nil {
		log.Error().Err(err).Msg("failed")
		return Failed
	}
	return OK
}

// describe prints what a check finds that keeps no process from starting, a warning each.
func (s Spec[C]) describe(cfg C, warnings []string, stderr io.Writer) {
	if s.Warnings != nil {
		warnings = append(warnings, s.Warnings(cfg)...)
	}
	if s.Problems != nil {
		if left := s.Problems(cfg); left != nil {
			warnings = append(warnings, strings.Split(left.Error(), "\n")...)
		}
	}
	for _, w := range warnings {
		fmt.Fprintf(stderr, "%s: warning: %s\n", s.Name, w)
	}
}

// Version is from what the binary was built, and by which Go.
func Version() string { return buildinfo.Version() + " " + runtime.Version() }
