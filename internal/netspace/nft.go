//go:build linux

package netspace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// ErrNoNft says that tests which call Nft cannot run, and why.
var ErrNoNft = errors.New("nft is not installed: apt-get install nftables")

// HasNft returns nil or ErrNoNft.
func HasNft() error {
	if _, err := exec.LookPath("nft"); err != nil {
		return ErrNoNft
	}
	return nil
}

// TB is what NeedRoot and NeedNft use of testing.TB.
type TB interface {
	Helper()
	Skip(...any)
	Fatal(...any)
}

// NeedRoot skips test t unless it runs as root, which network namespaces need. In CI (CI is set) t fails instead.
func NeedRoot(t TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, errors.New("network namespaces need root: this test does not run"))
	}
}

// NeedNft skips test t where nft is not installed. In CI (CI is set) t fails instead.
func NeedNft(t TB) {
	t.Helper()
	if err := HasNft(); err != nil {
		skip(t, err)
	}
}

func skip(t TB, why error) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// Nft runs commands of nft in a host and returns what it prints.
func (s *Space) Nft(host, commands string) (printed string, err error) {
	if err := HasNft(); err != nil {
		return "", err
	}
	err = s.In(host, func() error {
		out, err := exec.Command("nft", commands).CombinedOutput()
		if printed = string(out); err != nil {
			return fmt.Errorf("nft %s: %w: %s", commands, err, out)
		}
		return nil
	})
	return printed, err
}
