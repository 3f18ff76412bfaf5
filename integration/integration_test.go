// Package integration starts the real binaries as processes; see README.md.
package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// bin holds gateway, nodeproxy and isthmus, built once for all tests here.
var bin string

// root is the top of the repository.
const root = ".."

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "isthmus-integration-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		bin = filepath.Join(dir, "bin")
		build := exec.Command("go", "build", "-o", bin+"/", "./cmd/...")
		build.Dir, build.Stdout, build.Stderr = root, os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "build the binaries:", err)
			return 1
		}
		return m.Run()
	}())
}
