package file

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Config is the section of a process's YAML with the path of the discovery file.
type Config struct {
	File       string  `yaml:"file" doc:"path of the YAML file that describes the mesh, absolute or relative to the working directory; reloaded when it changes" env:"LOCAL_XDS_PATH"`
	MaxRemoval float64 `yaml:"maxRemoval" default:"0.3" doc:"largest share that one change of the file may remove without confirmation, above 0 to 1: of workloads, services, capacity under shares, gateways or policies. Two of each may always be removed, except the last gateway of a network"`
}

// DefaultConfig returns what a key that is left out means; File has no default.
func DefaultConfig() Config { return Config{MaxRemoval: DefaultMaxRemoval} }

// Validate names each field that cannot be, its value and what to do.
func (c Config) Validate() error {
	var v strictyaml.Check
	v.Required("discovery.file", c.File, "give the path of the discovery file")
	if !(c.MaxRemoval > 0 && c.MaxRemoval <= 1) {
		v.Fail("discovery.maxRemoval", "%v: must be above 0 and at most 1; 1 holds nothing", c.MaxRemoval)
	}
	return v.Err()
}

// Load is [Usable] of the file. An unreadable file is an error of the configuration.
func (c Config) Load() (s *mesh.Snapshot, left, err error) {
	s, left, err = Usable(c.File)
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		err = fmt.Errorf("discovery.file: %w: give a path from the root, or from the directory that the process is started in", failed)
	}
	return s, left, err
}

// Problems joins an error for each object or field of the file that a process excludes or changes
// when it starts with the file. It is nil without a file.
func (c Config) Problems() error {
	if c.File == "" {
		return nil
	}
	_, left, err := c.Load()
	return cmp.Or(err, left)
}

// Open is [Open] of the file for a process that is on network.
func (c Config) Open(network string, store *discovery.Store, log zerolog.Logger) (*Watcher, error) {
	return c.open("", network, store, log)
}

// OpenFor is [OpenFor] of the file for a process that is on network.
func (c Config) OpenFor(network string, store *discovery.Store, log zerolog.Logger) (*Watcher, error) {
	return c.open(network, network, store, log)
}

func (c Config) open(keep, network string, store *discovery.Store, log zerolog.Logger) (*Watcher, error) {
	w, err := open(keep, network, c.File, store)
	if err != nil {
		return nil, err
	}
	w.Log, w.Guard = log, Guard{Network: network, MaxRemoval: c.MaxRemoval}
	return w, nil
}
