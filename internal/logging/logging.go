// Package logging builds the one logger of a process: JSON lines or, for a
// person, coloured text, behind a bounded ring so that a slow sink loses lines
// (counted) instead of stalling connections.
package logging

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// ringLines is how many lines wait for a slow sink before the oldest are lost.
const ringLines = 16384

// Config is the section log of a process's YAML.
type Config struct {
	Level  string `yaml:"level" default:"info" doc:"lowest level to log: debug, info, warn or error" env:"ISTHMUS_LOG_LEVEL"`
	Format string `yaml:"format" default:"auto" doc:"json, console, or auto: console on a terminal and JSON elsewhere" env:"ISTHMUS_LOG_FORMAT"`
}

// Sink is the writing end of a process's log. Close flushes it. Safe for
// concurrent use.
type Sink struct {
	ring *ring
	out  io.Writer
	lost atomic.Int64
}

// SetLevel changes the lowest level to log, immediately and for every logger
// derived from this process's. It keeps the old one on error.
func (s *Sink) SetLevel(c Config) error {
	level, err := c.level()
	if err == nil {
		zerolog.SetGlobalLevel(level) // a zerolog.Logger copies its own level and cannot be told another
	}
	return err
}

// Lost returns how many lines were dropped because the sink was slow.
func (s *Sink) Lost() int64 { return s.lost.Load() }

// closeLimit is how long Close waits for a slow sink: less than a process is given to
// stop, and enough for a log that is read.
const closeLimit = 2 * time.Second

// Close writes what is still in the ring, and last how many lines were lost, if any: who
// counts lines must know that some are missing. What the sink has not taken after
// closeLimit is lost, and the error says how much: a log that nobody reads keeps no
// process from ending.
func (s *Sink) Close() error {
	var late error
	if !s.ring.close(closeLimit) {
		late = fmt.Errorf("close log: the sink has not taken all within %v: %d lines lost; read the log, or write it to a file", closeLimit, s.Lost())
	} else if n := s.Lost(); n > 0 {
		log := zerolog.New(s.out).With().Timestamp().Logger()
		log.Error().Int64("lines", n).Msg("log lines lost")
	}
	if c, ok := s.out.(io.Closer); ok {
		return errors.Join(late, c.Close())
	}
	return late
}

// Validate names each field that cannot be, its value and what to do, in the
// order of the fields.
func (c Config) Validate() error {
	_, level := c.level()
	_, format := c.writer(nil)
	return errors.Join(level, format)
}

func (c Config) level() (zerolog.Level, error) {
	switch s := strings.ToLower(c.Level); s {
	case "":
		return zerolog.InfoLevel, nil
	case "debug", "info", "warn", "error":
		return zerolog.ParseLevel(s)
	}
	return 0, fmt.Errorf("log.level: %q is not a level: use debug, info, warn or error", c.Level)
}

// writer is how lines get to out.
func (c Config) writer(out *os.File) (io.Writer, error) {
	switch c.Format {
	case "json":
		return out, nil
	case "console":
		return console(out), nil
	case "", "auto":
		if isTerminal(out) {
			return console(out), nil
		}
		return out, nil
	}
	return nil, fmt.Errorf("log.format: %q is not a format: use json, console or auto", c.Format)
}

// New returns the logger that c describes, writing to out. Its level is that of
// the whole process (see [Sink.SetLevel]): a process has one logger. The caller
// closes the sink last of all.
func New(c Config, out *os.File) (zerolog.Logger, *Sink, error) {
	if err := c.Validate(); err != nil {
		return zerolog.Logger{}, nil, err
	}
	w, _ := c.writer(out)
	zerolog.TimeFieldFormat = time.RFC3339Nano
	s := &Sink{out: w}
	s.ring = newRing(w, ringLines, func() { s.lost.Add(1) })
	s.SetLevel(c) // valid
	return zerolog.New(s.ring).With().Timestamp().Logger(), s, nil
}

func console(out *os.File) io.Writer {
	return zerolog.ConsoleWriter{Out: out, TimeFormat: "15:04:05.000", NoColor: os.Getenv("NO_COLOR") != "" || !isTerminal(out)}
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
