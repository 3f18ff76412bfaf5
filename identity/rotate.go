package identity

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/secretfile"
)

// Files of a root that is to take over, until it does.
const (
	nextCertFile = "next-ca.pem"
	nextKeyFile  = "next-ca-key.pem"
)

// Rotation is how far the replacement of a root is.
type Rotation struct {
	CA   *CA                 // that signs
	Next *x509.Certificate   // that is believed already, and signs once it is told to; nil: there is none
	Old  []*x509.Certificate // that are believed still, and do not sign
}

// ReadRotation says how it stands with the CA in dir.
func ReadRotation(dir string) (Rotation, error) {
	ca, err := OpenCA(dir)
	if err != nil {
		return Rotation{}, err
	}
	r := Rotation{CA: ca}
	next, err := ReadCertificates(filepath.Join(dir, nextCertFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return Rotation{}, fmt.Errorf("rotate ca: %w", err)
	default:
		r.Next = next[0]
	}
	for _, c := range ca.Roots() {
		if !c.Equal(ca.cert) && (r.Next == nil || !c.Equal(r.Next)) {
			r.Old = append(r.Old, c)
		}
	}
	return r, nil
}

// BeginRotation makes a root that is to take over from that in dir, which is believed from
// now on, and signs nothing yet: bundle.pem has both. Begun twice it is begun once.
func BeginRotation(dir string, lifetime time.Duration) (Rotation, error) {
	r, unlock, err := rotate(dir)
	if err != nil {
		return r, err
	}
	defer unlock()
	if len(r.Old) > 0 {
		return r, errors.New("rotate ca: the last rotation is not finished: an old root is believed still: finish it with --finish")
	}
	if r.Next == nil {
		ca, err := newCA(r.CA.td, lifetime)
		if err != nil {
			return r, fmt.Errorf("rotate ca: %w", err)
		}
		key, err := encodeKey(ca.key)
		if err != nil {
			return r, fmt.Errorf("rotate ca: %w", err)
		}
		if err := replaceFile(filepath.Join(dir, nextKeyFile), key, secretMode); err != nil {
			return r, fmt.Errorf("rotate ca: %w", err)
		}
		if err := replaceFile(filepath.Join(dir, nextCertFile), EncodeCertificates(ca.cert), publicMode); err != nil {
			return r, fmt.Errorf("rotate ca: %w", err)
		}
		r.Next = ca.cert
	}
	return r, writeBundle(dir, r.CA.cert, r.Next)
}

// SwitchRotation makes the next root the one that signs; the one before is believed still.
func SwitchRotation(dir string) (Rotation, error) {
	r, unlock, err := rotate(dir)
	if err != nil {
		return r, err
	}
	defer unlock()
	if r.Next == nil {
		return r, fmt.Errorf("rotate ca: %s: there is no next root: begin with `isthmus ca rotate --dir %[1]s`", dir)
	}
	if bundled := r.CA.bundle.HasX509Authority(r.Next); !bundled {
		return r, fmt.Errorf("rotate ca: %s does not hold the next root, so that nobody would believe what it signs: run `isthmus ca rotate --dir %s` again", filepath.Join(dir, bundleFile), dir)
	}
	cert, err := os.ReadFile(filepath.Join(dir, nextCertFile))
	if err != nil {
		return r, fmt.Errorf("rotate ca: %w", err)
	}
	key, err := secretfile.Read(filepath.Join(dir, nextKeyFile))
	if err != nil {
		return r, fmt.Errorf("rotate ca: %w", err)
	}
	// Who reads in between finds a key that is not that of the certificate, and reads
	// again. After a crash here the next files are there still, and this is done again.
	if err := errors.Join(replaceFile(filepath.Join(dir, caKeyFile), key, secretMode), replaceFile(filepath.Join(dir, caCertFile), cert, publicMode)); err != nil {
		return r, fmt.Errorf("rotate ca: %w", err)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, nextCertFile)), os.Remove(filepath.Join(dir, nextKeyFile))); err != nil {
		return r, fmt.Errorf("rotate ca: %w", err)
	}
	return ReadRotation(dir)
}

// FinishRotation ends the belief in all roots but the one that signs.
func FinishRotation(dir string) (Rotation, error) {
	r, unlock, err := rotate(dir)
	if err != nil {
		return r, err
	}
	defer unlock()
	if r.Next != nil {
		return r, errors.New("rotate ca: the next root does not sign yet: let it do so with --switch first")
	}
	if err := writeBundle(dir, r.CA.cert); err != nil {
		return r, err
	}
	return ReadRotation(dir)
}

// rotate reads the CA in dir, and keeps others who rotate it out until unlock is called.
func rotate(dir string) (r Rotation, unlock func() error, err error) {
	if unlock, err = lockDir(dir); err != nil {
		return r, nil, fmt.Errorf("rotate ca: %w", caRemedy(dir, err))
	}
	if err := settleSwitch(dir); err != nil {
		return r, nil, errors.Join(err, unlock())
	}
	if r, err = ReadRotation(dir); err != nil {
		return r, nil, errors.Join(err, unlock())
	}
	return r, unlock, nil
}

// settleSwitch completes a switch that a crash has cut off.
func settleSwitch(dir string) error {
	read := func(name string) []byte {
		b, _ := os.ReadFile(filepath.Join(dir, name))
		return b
	}
	key, cert := read(nextKeyFile), read(nextCertFile)
	if len(key) == 0 || len(cert) == 0 || !bytes.Equal(key, read(caKeyFile)) {
		return nil
	}
	err := replaceFile(filepath.Join(dir, caCertFile), cert, publicMode)
	if err == nil {
		err = errors.Join(os.Remove(filepath.Join(dir, nextCertFile)), os.Remove(filepath.Join(dir, nextKeyFile)))
	}
	return err
}

func writeBundle(dir string, roots ...*x509.Certificate) error {
	if err := replaceFile(filepath.Join(dir, bundleFile), EncodeCertificates(roots...), publicMode); err != nil {
		return fmt.Errorf("rotate ca: %w", err)
	}
	return nil
}
