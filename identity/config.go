package identity

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/identity/istioclient"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// Config is the section of a process's YAML with the source of its SVIDs.
type Config struct {
	Source     string        `yaml:"source" default:"ca" doc:"source of SVIDs: ca (a development CA; this process reads its key), files (rotated by another program) or istio (a CA with Istio's protocol: isthmus-controller or istiod)" env:"ISTHMUS_IDENTITY_SOURCE"`
	Dir        string        `yaml:"dir" doc:"directory of the CA (ca.pem, ca-key.pem), or of bundle.pem and <namespace>/<service account>/{cert,key}.pem, for a node proxy <namespace>/<service account>/node/<network>/<node>/{cert,key}.pem; not for source istio" env:"ISTHMUS_IDENTITY_DIR"`
	TTL        time.Duration `yaml:"ttl" default:"1h" doc:"lifetime of an SVID, renewed at half of it: of source ca, and requested of source istio, whose CA may issue shorter ones" env:"ISTHMUS_IDENTITY_TTL"`
	Address    string        `yaml:"address" doc:"source istio: host:port of the CA, such as isthmus-controller.isthmus-system.svc:15012 or istiod.istio-system.svc:15012" env:"ISTHMUS_IDENTITY_ADDRESS"`
	Root       string        `yaml:"root" doc:"source istio: file of the roots that verify the CA's certificate, in PEM; read for each connection" env:"ISTHMUS_IDENTITY_ROOT"`
	ServerName string        `yaml:"serverName" doc:"source istio: name that the CA's certificate must have; the host of address when left out" env:"ISTHMUS_IDENTITY_SERVER_NAME"`
	Token      string        `yaml:"token" doc:"source istio: file of a service-account token of audience istio-ca that authenticates this process to the CA. For an identity other than that of the token, the process acts as its node's proxy, as ztunnel does. Read for each request, as the kubelet replaces it" env:"ISTHMUS_IDENTITY_TOKEN"`
	Cluster    string        `yaml:"cluster" default:"Kubernetes" doc:"source istio: istiod's name for the cluster that issued the token" env:"ISTHMUS_IDENTITY_CLUSTER"`
	Bundle     string        `yaml:"bundle" doc:"file of further roots of the own trust domain, in PEM, that verify peers in addition to the roots delivered with SVIDs. Read again when it changes, so that all processes accept a new root before it signs. Left out, there are none" env:"ISTHMUS_IDENTITY_BUNDLE"`
}

// DefaultConfig is source ca with a lifetime of one hour; Dir has no default.
func DefaultConfig() Config { return Config{Source: SourceCA, TTL: DefaultTTL, Cluster: "Kubernetes"} }

// Values of identity.source.
const (
	SourceCA    = "ca"
	SourceFiles = "files"
	SourceIstio = "istio"
)

// withDefaults fills what the file left out.
func (c Config) withDefaults() Config {
	d := DefaultConfig()
	if c.Source == "" {
		c.Source = d.Source
	}
	if c.TTL == 0 {
		c.TTL = d.TTL
	}
	if c.Cluster == "" {
		c.Cluster = d.Cluster
	}
	if host, err := istioclient.HostOf(c.Address); err == nil && c.ServerName == "" {
		c.ServerName = host
	}
	return c
}

// Validate names each field that cannot be, its value and what to do, in the
// order of the fields.
func (c Config) Validate() error {
	c = c.withDefaults()
	var v strictyaml.Check
	switch c.Source {
	case SourceIstio:
		if c.Dir != "" {
			v.Fail("identity.dir", "%q: source istio keeps nothing in files: leave it out", c.Dir)
		}
	case SourceCA, SourceFiles:
		v.Required("identity.dir", c.Dir, "name the directory of the ca (`isthmus ca init`) or of the files (`isthmus ca issue`)")
	default:
		v.Fail("identity.source", "%q is not a source: use ca, files or istio", c.Source)
		v.Required("identity.dir", c.Dir, "name the directory of the ca (`isthmus ca init`) or of the files (`isthmus ca issue`)")
	}
	if c.TTL < MinTTL {
		v.Fail("identity.ttl", "%s is too short: want at least %s", c.TTL, MinTTL)
	}
	c.checkIstio(&v)
	return v.Err()
}

// checkIstio checks what source istio needs, and others do not.
func (c Config) checkIstio(v *strictyaml.Check) {
	if c.Source != SourceIstio {
		for _, f := range [][2]string{{"address", c.Address}, {"root", c.Root}, {"token", c.Token}} {
			if f[1] != "" {
				v.Fail("identity."+f[0], "%q: is for source istio: leave it out, or set source", f[1])
			}
		}
		return
	}
	if _, err := istioclient.HostOf(c.Address); err != nil {
		v.Field("identity.address", err)
	}
	v.Required("identity.root", c.Root, "name the file of the CA's roots, such as /etc/isthmus/root/bundle.pem")
	v.Required("identity.token", c.Token, "name the file of a projected service-account token of audience istio-ca")
}

// Open validates c and opens the source. The caller starts Run.
func (c Config) Open(log zerolog.Logger) (*Manager, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	src, err := c.open()
	if err != nil {
		return nil, err
	}
	return NewManager(src, log, withBundleFile(c.Bundle)), nil
}

func (c Config) open() (Source, error) {
	switch c.Source {
	case SourceIstio:
		client, err := istioclient.New(istioclient.Config{Address: c.Address, ServerName: c.ServerName, Root: c.Root, Token: c.Token, Cluster: c.Cluster})
		if err != nil {
			return nil, err
		}
		return istioSource{client, c.TTL}, nil
	case SourceFiles:
		if info, err := os.Stat(c.Dir); err != nil {
			return nil, fmt.Errorf("identity.dir: %w", c.filesRemedy(err))
		} else if !info.IsDir() {
			return nil, fmt.Errorf("identity.dir: %s is a file: name the directory that holds %s", c.Dir, bundleFile)
		}
		return FileSource{Dir: c.Dir}, nil
	}
	dir, err := OpenCADir(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("identity.dir: %w", err)
	}
	return caDir{CADir: dir, ttl: c.TTL}, nil
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
	*CADir
	ttl time.Duration
}

// Fetch issues an SVID with the CA of this moment.
func (d caDir) Fetch(ctx context.Context, id spiffeid.ID) (*SVID, error) {
	return CASource{CA: d.Current(), TTL: d.ttl}.Fetch(ctx, id)
}

// Reload reads the CA again; see [CADir.Reload].
func (d caDir) Reload() error {
	if err := d.CADir.Reload(); err != nil {
		return fmt.Errorf("identity.dir: %w", err)
	}
	return nil
}
