//go:build linux

package netspace

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Nft runs commands of nft in a host and returns what it prints. A test that calls it has called NeedsNft.
func (s *Space) Nft(host, commands string) (printed string, err error) {
	err = s.In(host, func() error {
		out, err := exec.Command("nft", commands).CombinedOutput()
		if printed = string(out); err != nil {
			return fmt.Errorf("nft %s: %w: %s", commands, err, out)
		}
		return nil
	})
	return printed, err
}

// NeedsNft skips a test where nft is not installed; in CI the test fails instead.
func NeedsNft(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err == nil {
		return
	}
	const lacks = "nft is not installed: apt-get install nftables"
	if os.Getenv("CI") != "" {
		t.Fatal(lacks)
	}
	t.Skip(lacks)
}
