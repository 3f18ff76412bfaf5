package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// offline is what check looks at without a cluster and a process.
type offline struct {
	configs     []string // KIND=FILE
	values      []string // files
	chart, helm string
}

// kindsOfConfig are the programs that read configurations, by the name of their binary.
var kindsOfConfig = []string{"gateway", "nodeproxy", "controller"}

func (f offline) validate() error {
	for _, x := range f.configs {
		if kind, file, ok := strings.Cut(x, "="); !ok || file == "" || !slices.Contains(kindsOfConfig, kind) {
			return fmt.Errorf("--config %q: write KIND=FILE, with one of %s", x, strings.Join(kindsOfConfig, ", "))
		}
	}
	return nil
}

// files checks files. The errors are of programs that could not be run.
func (c *checkup) files(ctx context.Context, f offline) (errs []error) {
	for _, x := range f.configs {
		kind, file, _ := strings.Cut(x, "=")
		said, mistakes, err := runCheck(ctx, beside(kind), "--config", file, "--check")
		if err != nil {
			errs = append(errs, fmt.Errorf("--config %s: %w: install %s beside isthmus, or in PATH", x, err, kind))
			continue
		}
		level := checkWarning
		if mistakes {
			level = checkBad
		}
		c.add(checkConfig, kind+" "+file, level, said)
	}
	if len(f.values) == 0 {
		return errs
	}
	args := []string{"template", "isthmus", f.chart}
	for _, v := range f.values {
		args = append(args, "--values", v)
	}
	said, mistakes, err := runCheck(ctx, f.helm, args...)
	if err != nil {
		return append(errs, fmt.Errorf("--values: %w: name helm with --helm", err))
	}
	if !mistakes {
		said = "" // manifests, and what helm says beside
	}
	c.add(checkValues, "values "+strings.Join(f.values, " "), checkBad, said)
	return errs
}

// checkLimit bounds how long a program checks a file.
const checkLimit = 30 * time.Second

// runCheck runs a program and returns what it says of mistakes; an error is that it could not
// be run.
func runCheck(ctx context.Context, program string, args ...string) (said string, mistakes bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var b bytes.Buffer
	cmd.Stderr = &b
	err = cmd.Run()
	said = strings.TrimSpace(b.String())
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) && ctx.Err() == nil {
		if said == "" {
			said = err.Error()
		}
		return said, true, nil
	}
	return said, false, err
}

// beside is the program of that name in the directory of this one, else the one in PATH.
func beside(name string) string {
	if own, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(own), name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	return name
}
