package identity

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// Config is the part of a process's YAML that says where its SVIDs come from.
type Config struct {
	Source string        `yaml:"source" default:"ca" doc:"where SVIDs come from: ca (a development CA whose key this process reads) or files (somebody else rotates them)" env:"ISTHMUS_IDENTITY_SOURCE"`
	Dir    string        `yaml:"dir" doc:"directory of the CA (ca.pem, ca-key.pem), or of bundle.pem and <namespace>/<service account>/{cert,key}.pem, for a node proxy <namespace>/<service account>/node/<network>/<node>/{cert,key}.pem" env:"ISTHMUS_IDENTITY_DIR"`
	TTL    time.Duration `yaml:"ttl" default:"1h" doc:"lifetime of an issued SVID, renewed at half of it; source ca only" env:"ISTHMUS_IDENTITY_TTL"`
}

// DefaultConfig is source ca with a lifetime of one hour; Dir has no default.
func DefaultConfig() Config { return Config{Source: "ca", TTL: DefaultTTL} }

// withDefaults fills what the file left out.
func (c Config) withDefaults() Config {
	d := DefaultConfig()
	if c.Source == "" {
		c.Source = d.Source
	}
	if c.TTL == 0 {
		c.TTL = d.TTL
	}
	return c
}

// Validate names each field that cannot be, its value and what to do, in the
// order of the fields.
func (c Config) Validate() error {
	c = c.withDefaults()
	var v strictyaml.Check
	if c.Source != "ca" && c.Source != "files" {
		v.Fail("identity.source", "%q is not a source: use ca or files", c.Source)
	}
	v.Required("identity.dir", c.Dir, "name the directory of the ca (`isthmus ca init`) or of the files (`isthmus ca issue`)")
	if c.TTL < MinTTL {
		v.Fail("identity.ttl", "%s is too short: want at least %s", c.TTL, MinTTL)
	}
	return v.Err()
}

// Open validates c and opens the source. The caller starts Run.
func (c Config) Open(log zerolog.Logger) (*Manager, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	if c.Source == "files" {
		if info, err := os.Stat(c.Dir); err != nil {
			return nil, fmt.Errorf("identity.dir: %w", c.filesRemedy(err))
		} else if !info.IsDir() {
			return nil, fmt.Errorf("identity.dir: %s is a file: name the directory that holds %s", c.Dir, bundleFile)
		}
		return NewManager(FileSource{Dir: c.Dir}, log), nil
	}
	src := &caDir{dir: c.Dir, ttl: c.TTL}
	if err := src.Reload(); err != nil {
		return nil, err
	}
	return NewManager(src, log), nil
}

// filesRemedy says what to do about err, met while the directory was looked at.
func (c Config) filesRemedy(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: make it with `isthmus ca issue --dir <directory of the ca> --out %s --id <SPIFFE ID>`", err, c.Dir)
	case errors.Is(err, fs.ErrPermission):
		return unreadable(err)
	}
	return err
}

// caDir is a CASource whose CA is read from a directory, and again when it is
// told to.
type caDir struct {
	dir string
	ttl time.Duration
	ca  atomic.Pointer[CA]
}

// Fetch issues an SVID with the CA of this moment.
func (d *caDir) Fetch(ctx context.Context, id spiffeid.ID) (*SVID, error) {
	return CASource{CA: d.ca.Load(), TTL: d.ttl}.Fetch(ctx, id)
}

// Reload reads the CA again and keeps the old one on error, and if the new one is
// another mesh's: nobody here would accept what it signs.
func (d *caDir) Reload() error {
	ca, err := OpenCA(d.dir)
	if err != nil {
		return fmt.Errorf("identity.dir: %w", err)
	}
	if old := d.ca.Load(); old != nil && old.TrustDomain() != ca.TrustDomain() {
		return fmt.Errorf("identity.dir: %s: the ca signs for trust domain %q now, before for %q: put the ca of this mesh back, or restart every process with the new trustDomain", d.dir, ca.TrustDomain().Name(), old.TrustDomain().Name())
	}
	d.ca.Store(ca)
	return nil
}
