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

// Runner is a process that was built and holds its sockets.
type Runner interface {
	Run(ctx context.Context) error
}

// Reloader is a Runner that has files to read again when it is asked to, at any
// time between New and the end of Run. Reload does not wait.
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
	// Problems joins what is wrong with files that a configuration names and keeps nobody from
	// starting, for --check: a running process tells of it itself. It may be nil, as Warnings may.
	Problems func(C) error
	// Warnings says what of such files is in force and does not do what it was written for, likewise.
	Warnings func(C) []string
	// Log picks the logging part of the configuration.
	Log func(C) logging.Config
	// New binds sockets and reads what it needs; an error means exit 3.
	New func(C, zerolog.Logger) (Runner, error)
}

// Main runs the process that s describes and returns its exit code.
func Main[C any](s Spec[C], args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet(s.Name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "Usage: %s --config FILE\n", s.Name)
		flags.PrintDefaults()
		fmt.Fprintln(stderr, ExitCodes)
	}
	path := flags.String("config", "", "path of the YAML configuration (required)")
	version := flags.Bool("version", false, "print the version and exit")
	check := flags.Bool("check", false, "check the configuration and the discovery file, not keys and certificates, and exit: with 2 if the process would not start by them; isthmus check --strict fails for what is left out of them too")
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
	if *check {
		for _, w := range warnings {
			fmt.Fprintf(stderr, "%s: %s\n", s.Name, w)
		}
		if s.Warnings != nil {
			for _, w := range s.Warnings(cfg) {
				fmt.Fprintf(stderr, "%s: warning: %s\n", s.Name, w)
			}
		}
		if s.Problems != nil {
			if left := s.Problems(cfg); left != nil {
				fmt.Fprintf(stderr, "%s: starts, with problems:\n%v\n", s.Name, left)
			}
		}
		return OK
	}
	log, sink, err := logging.New(s.Log(cfg), os.Stderr)
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", s.Name, err)
		return Usage
	}
	defer sink.Close()
	log = log.With().Str("component", s.Name).Str("instance", s.Instance(cfg)).Logger()
	for _, w := range warnings {
		log.Warn().Msg(w)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	r, err := s.New(cfg, log)
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

// Version is from what the binary was built, and by which Go.
func Version() string { return buildinfo.Version() + " " + runtime.Version() }
