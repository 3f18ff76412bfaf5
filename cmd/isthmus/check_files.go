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
	for _, v := range f.values {
		if err := isThere(v); err != nil {
			return fmt.Errorf("--values: %w", err)
		}
	}
	if len(f.values) == 0 {
		return nil
	}
	if err := isThere(f.chart); err != nil {
		return fmt.Errorf("--chart: %w: name the directory of the chart, helm/isthmus of this project's repository: --chart DIRECTORY/helm/isthmus", err)
	}
	return nil
}

// isThere is that of a file or directory; an address is for helm to ask.
func isThere(path string) error {
	if strings.Contains(path, "://") {
		return nil
	}
	_, err := os.Stat(path)
	return err
}

// files checks files. The errors are of programs that could not be run.
func (c *checkup) files(ctx context.Context, f offline) (errs []error) {
	for _, x := range f.configs {
		kind, file, _ := strings.Cut(x, "=")
		_, said, mistakes, err := runCheck(ctx, nil, beside(kind), "--config", file, "--check-config")
		if err != nil {
			errs = append(errs, fmt.Errorf("--config %s: %w: install %s beside isthmus, or in PATH", x, err, kind))
			continue
		}
		level := checkWarning
		if mistakes {
			level = checkBad
		}
		remedy, where := checkConfig.remedy, kind+" "+file
		if _, err := os.ReadFile(file); err != nil {
			remedy = "give the path of a file that can be read: --config {program}=FILE"
		}
		c.at(where, &place{program: kind})
		c.remedied(checkConfig, where, level, said, remedy)
	}
	if len(f.values) > 0 {
		errs = append(errs, c.chart(ctx, f)...)
	}
	return errs
}

// checkLimit bounds how long a program checks a file.
const checkLimit = 30 * time.Second

// runCheck runs a program, with more environment, and returns what it prints and what it says of
// mistakes; an error is that it could not be run.
func runCheck(ctx context.Context, env []string, program string, args ...string) (out []byte, said string, mistakes bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var printed, b bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), &printed, &b
	err = cmd.Run()
	said = strings.TrimSpace(b.String())
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) && ctx.Err() == nil {
		if said == "" {
			said = err.Error()
		}
		return nil, said, true, nil
	}
	return printed.Bytes(), said, false, err
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
