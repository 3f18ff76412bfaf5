//go:build linux

// Command benchpath measures the real binaries as processes, on one machine: the
// processor time of every role per GiB, per connection and per message, latency,
// and memory of idle connections; beside a plain connection, a plain relay and,
// in network namespaces, stock ztunnel. Variants take turns cell by cell, so that
// what else the machine does meets all of them.
//
// make bench-path builds and runs it; docs/performance.md says how to read it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := command(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "benchpath:", err)
		os.Exit(1)
	}
}

// command runs the measurement, or what the measurement starts for itself.
func command(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "serve-app":
		return serveApp(args[1])
	case len(args) == 3 && args[0] == "serve-relay":
		return serveRelay(args[1], args[2])
	case len(args) == 2 && args[0] == "serve-load":
		return serveGenerator(args[1])
	}
	o, err := parseOptions(args, os.Stderr)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, o)
}

// run measures, and shows what it has also when it fails or is interrupted.
func run(ctx context.Context, o options) error {
	if err := os.RemoveAll(filepath.Join(o.out, "failures")); err != nil {
		return err
	}
	files, err := raiseFiles(perRelayed*o.idle + otherFiles)
	if err != nil {
		return err
	}
	r := &result{
		Started: time.Now(), Command: strings.Join(os.Args, " "), Machine: thisMachine(),
		Topology: o.topology, Entry: o.entry, Runs: o.runs,
	}
	if o.ztunnel != "" {
		r.ZTunnel = versionOf(o.ztunnel)
	}
	w, err := newWorld(o.makeTopology(), o.bin, o.ztunnel, o.entry)
	if err == nil {
		w.rest = o.rest
		err = w.runAll(ctx, o, files, r)
	}
	err = errors.Join(err, w.close())
	r.Took = time.Since(r.Started).Round(time.Second).String()
	if len(r.Samples) > 0 {
		r.summarize()
		err = errors.Join(err, r.print(os.Stdout), r.save(o.out), r.err())
	}
	return err
}

// runAll takes all samples: in each run every load, and of each load every
// variant in turn.
func (w *world) runAll(ctx context.Context, o options, files int, r *result) error {
	var variants []*variant
	for _, v := range w.variants {
		if o.variants.MatchString(v.Name) {
			variants = append(variants, v)
			r.Variants = append(r.Variants, v.Name)
		}
	}
	for _, l := range loads(o.seconds, o.idle) {
		if o.loads.MatchString(l.Name) {
			r.Loads = append(r.Loads, l)
		}
	}
	for n := range o.runs {
		for _, l := range r.Loads {
			fmt.Fprintf(os.Stderr, "run %d of %d: %s\n", n+1, o.runs, l.Name)
			for _, v := range variants {
				if l.Unit == perIdle {
					if len(v.roles) == 0 {
						continue
					}
					l.Request.Streams = v.affordable(o.idle, files)
				}
				s, err := w.measure(ctx, v, l)
				if err != nil {
					return err
				}
				s.Load, s.Variant, s.Run = l.Name, v.Name, n+1
				r.Samples = append(r.Samples, s)
				if s.Reply.Errors > 0 {
					if err := w.keepEvidence(o.out, v, s); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}
