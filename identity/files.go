package identity

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/internal/secretfile"
)

const (
	bundleFile = "bundle.pem"
	certFile   = "cert.pem"
	keyFile    = "key.pem"
)

// Reading between the renames of a rotation shows a key and a certificate that
// do not belong together; a writer needs well under 10 ms to finish.
const (
	mismatchReads = 20
	mismatchPause = 25 * time.Millisecond
)

// FileSource reads SVIDs that somebody else rotates:
//
//	Dir/bundle.pem                         roots of the trust domain
//	Dir/<namespace>/<service account>/     cert.pem (leaf first), key.pem
//	  node/<network>/<node>/               the same, of a node proxy
//
// The Manager looks for changed files every second. Keys are read as [secretfile.Read] does.
type FileSource struct {
	Dir string
}

// paths are the bundle, certificate and key of id. That none leaves Dir is
// guaranteed by segments.
func (f FileSource) paths(id spiffeid.ID) (bundle, cert, key string, err error) {
	names, err := segments(id)
	if err != nil {
		return "", "", "", err
	}
	d := filepath.Join(append([]string{f.Dir}, names...)...)
	return filepath.Join(f.Dir, bundleFile), filepath.Join(d, certFile), filepath.Join(d, keyFile), nil
}

// Fetch reads the SVID of id. Half-finished rotations are waited for, up to
// half a second.
func (f FileSource) Fetch(ctx context.Context, id spiffeid.ID) (*SVID, error) {
	for n := 1; ; n++ {
		s, err := f.read(id)
		if !errors.Is(err, errKeyMismatch) || n == mismatchReads {
			return s, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, context.Cause(ctx))
		case <-time.After(mismatchPause):
		}
	}
}

func (f FileSource) read(id spiffeid.ID) (*SVID, error) {
	bundlePath, certPath, keyPath, err := f.paths(id)
	if err != nil {
		return nil, err
	}
	data, err := readFile(bundlePath)
	if err != nil {
		return nil, f.missing("bundle", id, err)
	}
	bundle, err := ParseBundle(id.TrustDomain(), data)
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %w", bundlePath, err)
	}
	if data, err = secretfile.Read(keyPath); err != nil {
		return nil, f.missing("key", id, err)
	}
	key, err := ParsePrivateKey(data)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", keyPath, err)
	}
	if data, err = readFile(certPath); err != nil {
		return nil, f.missing("certificate", id, err)
	}
	certs, err := ParseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", certPath, err)
	}
	s := &SVID{ID: id, Certificates: certs, PrivateKey: key, Bundle: bundle}
	if err := s.Check(id, time.Now()); err != nil {
		return nil, fmt.Errorf("%s: %w", certPath, err)
	}
	return s, nil
}

// missing says what to do about a file of id that could not be read.
func (f FileSource) missing(what string, id spiffeid.ID, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s of %s: %w: write it with `isthmus ca issue --dir <directory of the ca> --out %s --id %[2]s`", what, id, err, f.Dir)
	case errors.Is(err, fs.ErrPermission):
		err = unreadable(err)
	}
	return fmt.Errorf("%s of %s: %w", what, id, err)
}

// Fingerprint changes when any file of id is replaced or written. It reads no
// content: inode, size and modification time of each file.
func (f FileSource) Fingerprint(id spiffeid.ID) string {
	bundle, cert, key, err := f.paths(id)
	if err != nil {
		return ""
	}
	return fingerprint([]string{bundle, cert, key})
}

// WriteSVID writes s below dir in FileSource's layout: directories 0700, the
// key 0600. Each file is replaced in one step; writers wait for each other.
func WriteSVID(dir string, s *SVID) error {
	_, certPath, keyPath, err := FileSource{Dir: dir}.paths(s.ID)
	if err != nil {
		return fmt.Errorf("write svid: %w", err)
	}
	bundle, err := s.Bundle.Marshal()
	if err != nil {
		return fmt.Errorf("write svid of %s: %w", s.ID, err)
	}
	key, err := encodeKey(s.PrivateKey)
	if err != nil {
		return fmt.Errorf("write svid of %s: %w", s.ID, err)
	}
	if err := os.MkdirAll(filepath.Dir(certPath), dirMode); err != nil {
		return fmt.Errorf("write svid of %s: %w", s.ID, err)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return fmt.Errorf("write svid of %s: %w", s.ID, err)
	}
	err = s.replaceFiles(dir, certPath, keyPath, bundle, key)
	if err = errors.Join(err, unlock()); err != nil {
		return fmt.Errorf("write svid of %s: %w", s.ID, err)
	}
	return nil
}

// replaceFiles stops at the first failure. The bundle comes first: a new root
// must be believed before it is used.
func (s *SVID) replaceFiles(dir, certPath, keyPath string, bundle, key []byte) error {
	if err := replaceFile(filepath.Join(dir, bundleFile), bundle, publicMode); err != nil {
		return err
	}
	if err := replaceFile(keyPath, key, secretMode); err != nil {
		return err
	}
	return replaceFile(certPath, EncodeCertificates(s.Certificates...), publicMode)
}
