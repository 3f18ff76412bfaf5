package main

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/isthmus-mesh/isthmus/identity"
)

// shown is one certificate as `ca show -o json` prints it.
type shown struct {
	File        string    `json:"file"`
	ID          string    `json:"id"` // URI SANs, comma-joined
	CA          bool      `json:"ca"`
	Serial      string    `json:"serial"`
	Issuer      string    `json:"issuer"`
	NotBefore   time.Time `json:"notBefore"`
	NotAfter    time.Time `json:"notAfter"`
	Key         string    `json:"key"`
	Fingerprint string    `json:"sha256"`
	State       string    `json:"state"` // valid, expired, not yet valid
}

func newCAShowCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:     "show [FILE]",
		Short:   "Show the certificates of a ca, of issued files, or of one PEM file",
		Long:    "show lists every certificate in FILE, or below the directory --dir. It exits with 1 if one of them is not valid now.",
		Example: "  isthmus ca show --dir ca\n  isthmus ca show svids/shop/cart/cert.pem -o json",
		Args:    cobra.MaximumNArgs(1),
	}
	cmd.Flags().StringVar(&dir, "dir", "ca", "directory of a ca or of issued files")
	_ = cmd.MarkFlagDirname("dir")
	format, check := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := check(); err != nil {
			return err
		}
		if len(args) == 1 && cmd.Flags().Changed("dir") {
			return exit(exitUsage, fmt.Errorf("--dir %s and FILE %s: give only one of them", dir, args[0]))
		}
		path := dir
		if len(args) == 1 {
			path = args[0]
		}
		list, err := showPath(path, time.Now())
		if err != nil {
			return exit(exitStart, err)
		}
		if err := printShown(cmd.OutOrStdout(), *format, list); err != nil {
			return exit(exitStart, err)
		}
		return exit(exitFinding, notValid(list))
	}
	return cmd
}

// showPath reads every certificate in the file path, or in the .pem files below
// the directory path that are not keys.
func showPath(path string, now time.Time) ([]shown, error) {
	list := []shown{}
	root := path
	if i, err := os.Stat(path); err == nil && i.IsDir() {
		root = path + string(filepath.Separator) // otherwise WalkDir would not enter a symbolic link
	}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir(), p != root && (filepath.Ext(p) != ".pem" || isKey(p)):
			return nil
		}
		certs, err := identity.ReadCertificates(p)
		if err != nil {
			return err
		}
		for _, c := range certs {
			list = append(list, show(p, c, now))
		}
		return nil
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("show certificates: %w: name a PEM file, or the directory of a ca with --dir", err)
	}
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("show certificates: no .pem file with a certificate below %s: name a directory that `isthmus ca` wrote", path)
	}
	return list, nil
}

func isKey(path string) bool {
	b := filepath.Base(path)
	return b == "key.pem" || strings.HasSuffix(b, "-key.pem") || strings.HasPrefix(b, ".")
}

func show(file string, c *x509.Certificate, now time.Time) shown {
	ids := make([]string, len(c.URIs))
	for i, u := range c.URIs {
		ids[i] = u.String()
	}
	s := shown{
		File: file, ID: strings.Join(ids, ","), CA: c.IsCA,
		Serial: fmt.Sprintf("%x", c.SerialNumber), Issuer: c.Issuer.String(),
		NotBefore: c.NotBefore.UTC(), NotAfter: c.NotAfter.UTC(),
		Key: c.PublicKeyAlgorithm.String(), Fingerprint: fmt.Sprintf("%x", sha256.Sum256(c.Raw)), State: "valid",
	}
	if now.Before(c.NotBefore) {
		s.State = "not yet valid"
	} else if !now.Before(c.NotAfter) {
		s.State = "expired"
	}
	return s
}

func printShown(w io.Writer, format string, list []shown) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(list)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FILE\tID\tKIND\tSTATE\tNOT AFTER\tSHA-256")
	for _, s := range list {
		kind := "svid"
		if s.CA {
			kind = "root"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%.16s\n", s.File, s.ID, kind, s.State, s.NotAfter.Format(time.RFC3339), s.Fingerprint)
	}
	return t.Flush()
}

func notValid(list []shown) error {
	var errs []error
	for _, s := range list {
		if s.State != "valid" {
			errs = append(errs, fmt.Errorf("%s: certificate of %s is %s (%s to %s): issue it again", s.File, s.ID, s.State, s.NotBefore.Format(time.RFC3339), s.NotAfter.Format(time.RFC3339)))
		}
	}
	return errors.Join(errs...)
}
