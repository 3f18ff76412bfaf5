//go:build linux

package netspace

import (
	"errors"
	"fmt"
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
