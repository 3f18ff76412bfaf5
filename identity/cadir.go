package identity

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

// CADir is a CA that is read from a directory, and again when its files change: ca.pem,
// ca-key.pem and, while the root is replaced, bundle.pem. Safe for concurrent use.
type CADir struct {
	dir   string
	ca    atomic.Pointer[CA]
	print atomic.Pointer[string] // of the files as they were read last
}

// OpenCADir reads the CA in dir as [OpenCA] does.
func OpenCADir(dir string) (*CADir, error) {
	d := &CADir{dir: dir}
	if err := d.Reload(); err != nil {
		return nil, err
	}
	return d, nil
}

// Current is the CA of this moment.
func (d *CADir) Current() *CA { return d.ca.Load() }

// Reload reads the CA again and keeps the old one on error, and if the new one is
// another mesh's: nobody here would accept what it signs.
func (d *CADir) Reload() error {
	print := fingerprint(d.paths())
	d.print.Store(&print)
	ca, err := OpenCA(d.dir)
	if err != nil {
		return err
	}
	if old := d.ca.Load(); old != nil && old.TrustDomain() != ca.TrustDomain() {
		return fmt.Errorf("%s: the ca signs for trust domain %q now, before for %q: put the ca of this mesh back, or restart every process with the new trustDomain", d.dir, ca.TrustDomain().Name(), old.TrustDomain().Name())
	}
	d.ca.Store(ca)
	return nil
}

func (d *CADir) paths() []string {
	return []string{filepath.Join(d.dir, caCertFile), filepath.Join(d.dir, caKeyFile), filepath.Join(d.dir, bundleFile)}
}

// Run reads the CA again when its files have changed, until ctx ends. Files that cannot
// be read are tried again each second, as they are between two steps of who replaces them.
func (d *CADir) Run(ctx context.Context, log zerolog.Logger) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	failed := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if failed == "" && fingerprint(d.paths()) == *d.print.Load() {
			continue
		}
		before := d.Current()
		if err := d.Reload(); err != nil {
			if failed != err.Error() {
				log.Error().Err(err).Str("dir", d.dir).Msg("ca refused, signing with the one before")
			}
			failed = err.Error()
			continue
		}
		if now := d.Current(); failed != "" || !now.cert.Equal(before.cert) || !now.bundle.Equal(before.bundle) {
			log.Info().Str("dir", d.dir).Str("root", fmt.Sprintf("%x", now.cert.SerialNumber)).Int("roots", len(now.Roots())).Time("not_after", now.cert.NotAfter).Msg("ca read again")
		}
		failed = ""
	}
}

// fingerprint changes when any of the files is replaced or written. It reads no content:
// inode, size and modification time of each file.
func fingerprint(paths []string) string {
	var b strings.Builder
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			b.WriteString("-;")
			continue
		}
		var inode uint64
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			inode = st.Ino
		}
		fmt.Fprintf(&b, "%d/%d/%d;", inode, info.Size(), info.ModTime().UnixNano())
	}
	return b.String()
}
