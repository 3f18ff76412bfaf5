//go:build linux

// Overload offers the real binaries more new connections than the machine can
// serve and shows what becomes of those that are served:
//
//	go run ./integration/overload
//
// First a closed loop finds the capacity of each path, then open loops offer half
// to four times that, then half again. The proxies have
// the first processor, load and applications the others, so that what the load costs
// takes nothing from the proxies, as if clients were on other machines; with
// --apart=false all share the machine. It needs no privileges. Its last line says HELD, BROKEN with the
// bound that is: the served share at twice the capacity, the time that served
// connections took, health that moved although every pod was well, connections that
// fail afterwards; or INCONCLUSIVE when a bound does not hold and other processes
// used the machine. The exit codes are those of isthmus drill: 0, 1 and 4, 2 for a
// mistake in the command line, 3 when it could not do its work.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/integration/fleet"
)

type options struct {
	bin, out string
	time     time.Duration // of one level
	levels   levels
	paths    *regexp.Regexp
	seed     uint64
	keep     bool
	apart    bool
}

// levels are multiples of the capacity.
type levels []float64

func (l *levels) String() string { return fmt.Sprint([]float64(*l)) }

func (l *levels) Set(text string) error {
	*l = nil
	for t := range strings.SplitSeq(text, ",") {
		v, err := strconv.ParseFloat(t, 64)
		if err != nil || v <= 0 || v > 10 {
			return fmt.Errorf("level %q: want a number above 0 and at most 10", t)
		}
		*l = append(*l, v)
	}
	return nil
}

func main() {
	o := options{levels: levels{0.5, 1, 1.5, 2, 3, 4}}
	paths := ""
	flag.StringVar(&o.bin, "bin", "bin", "folder of gateway, nodeproxy and isthmus")
	flag.StringVar(&o.out, "out", "build/overload", "folder for result.json")
	flag.DurationVar(&o.time, "time", 5*time.Second, "how long each level is offered")
	flag.Var(&o.levels, "levels", "multiples of the capacity, separated by commas")
	flag.StringVar(&paths, "paths", ".*", "regular expression of whole names: only these paths")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the arrivals")
	flag.BoolVar(&o.apart, "apart", true, "give the proxies the first processor and load and applications the others")
	flag.BoolVar(&o.keep, "keep", false, "keep configurations and logs")
	flag.Parse()
	var err error
	if o.paths, err = regexp.Compile("^(?:" + paths + ")$"); err != nil {
		fmt.Fprintln(os.Stderr, "overload: --paths:", err)
		os.Exit(fleet.ExitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "overload:", err)
		os.Exit(fleet.ExitStart)
	}
	v := r.verdict()
	r.print(os.Stdout, v)
	os.Exit(v.Code())
}

func run(ctx context.Context, o options) (*report, error) {
	w, err := newWorld(o)
	if err != nil {
		return nil, err
	}
	defer w.close()
	if err := w.start(ctx); err != nil {
		return nil, err
	}
	r := &report{Seed: o.seed}
	for _, p := range w.paths {
		if !o.paths.MatchString(p.name) {
			continue
		}
		c, err := w.curve(ctx, p)
		if err != nil {
			return nil, err
		}
		r.Curves = append(r.Curves, c)
	}
	for _, c := range r.Curves {
		if len(c.faults()) > 0 {
			w.Keep, r.Logs = true, w.Dir
		}
	}
	return r, r.save(o.out)
}

func (r *report) save(out string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "result.json"), text, 0o644)
}
