package process

import (
	"os"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// reloader answers SIGHUP.
type reloader[C any] struct {
	spec    Spec[C]
	path    string
	started C // the configuration that the process runs with
	runner  Runner
	log     zerolog.Logger
	sink    *logging.Sink
}

// run reloads once for each signal, until ended is closed. Signals that come
// while it does are one.
func (r *reloader[C]) run(signals <-chan os.Signal, ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-signals:
			r.reload()
		}
	}
}

// reload takes the log level from the configuration and asks the process to
// read its files. A bad configuration changes no level; the files are read all
// the same. What is wrong with the files themselves, who reads them tells.
func (r *reloader[C]) reload() {
	c, warnings, err := r.spec.Load(r.path)
	if err != nil && !strictyaml.Elsewhere(err, r.path) {
		r.log.Error().Err(err).Str("file", r.path).Msg("configuration refused, keeping the one in force")
	} else {
		r.configure(c, warnings)
	}
	if x, ok := r.runner.(Reloader); ok {
		x.Reload()
	}
}

func (r *reloader[C]) configure(c C, warnings []string) {
	l := r.spec.Log(c)
	if err := r.sink.SetLevel(l); err != nil {
		r.log.Error().Err(err).Str("file", r.path).Msg("configuration refused, keeping the one in force")
		return
	}
	for _, w := range warnings {
		r.log.Warn().Msg(w)
	}
	var later []string
	for _, key := range strictyaml.Changed(r.started, c) {
		if key != "log.level" {
			later = append(later, key)
		}
	}
	if len(later) > 0 {
		r.log.Warn().Strs("keys", later).Str("file", r.path).Msg("these keys changed and take effect only when the process is started again")
	}
	r.log.Info().Str("file", r.path).Str("log_level", l.Level).Msg("configuration read again")
}
