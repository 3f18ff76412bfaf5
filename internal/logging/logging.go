// Package logging builds the one logger of a process: JSON lines or, for a
// person, coloured text, behind a bounded ring so that a slow sink loses lines
// (counted) instead of stalling connections.
package logging

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/rs/zerolog/diode"
	"golang.org/x/sys/unix"
)

// ringLines is how many lines wait for a slow sink before the oldest are lost.
const ringLines = 16384

// Config is the part of a process's YAML that says how it logs.
type Config struct {
	Level  string `yaml:"level" default:"info" doc:"least level that is written: debug, info, warn or error" env:"ISTHMUS_LOG_LEVEL"`
	Format string `yaml:"format" default:"auto" doc:"json, console, or auto: console on a terminal and JSON elsewhere" env:"ISTHMUS_LOG_FORMAT"`
}

// Sink is the writing end of a process's log. Close flushes it.
type Sink struct {
	ring diode.Writer
	lost atomic.Int64
}

// Lost returns how many lines were dropped because the sink was slow.
func (s *Sink) Lost() int64 { return s.lost.Load() }

// Close writes what is still in the ring.
func (s *Sink) Close() error { return s.ring.Close() }

// New returns the logger that c describes, writing to out. The caller closes
// the sink last of all.
func New(c Config, out *os.File) (zerolog.Logger, *Sink, error) {
	level := zerolog.InfoLevel
	if c.Level != "" {
		l, err := zerolog.ParseLevel(strings.ToLower(c.Level))
		if err != nil {
			return zerolog.Logger{}, nil, fmt.Errorf("log.level: %q is not a level: use debug, info, warn or error", c.Level)
		}
		level = l
	}
	var w io.Writer = out
	switch c.Format {
	case "json":
	case "console":
		w = console(out)
	case "", "auto":
		if isTerminal(out) {
			w = console(out)
		}
	default:
		return zerolog.Logger{}, nil, fmt.Errorf("log.format: %q is not a format: use json, console or auto", c.Format)
	}
	zerolog.TimeFieldFormat = time.RFC3339Nano
	s := &Sink{}
	s.ring = diode.NewWriter(w, ringLines, 0, func(missed int) { s.lost.Add(int64(missed)) })
	return zerolog.New(s.ring).Level(level).With().Timestamp().Logger(), s, nil
}

func console(out *os.File) io.Writer {
	return zerolog.ConsoleWriter{Out: out, TimeFormat: "15:04:05.000", NoColor: os.Getenv("NO_COLOR") != "" || !isTerminal(out)}
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
