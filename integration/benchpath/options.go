//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// options are what the flags say.
type options struct {
	bin, out        string
	runs            int
	seconds         float64
	idle            int
	rest            time.Duration
	loads, variants *regexp.Regexp
	topology        string
	entry           entry
	ztunnel         string
}

func parseOptions(args []string, errs io.Writer) (o options, err error) {
	f := flag.NewFlagSet("benchpath", flag.ContinueOnError)
	f.SetOutput(errs)
	f.StringVar(&o.bin, "bin", "bin", "directory of gateway, nodeproxy and isthmus")
	f.StringVar(&o.out, "out", "build/bench-path", "directory for result.json and report.html")
	f.IntVar(&o.runs, "runs", 5, "how often every cell is measured")
	f.Float64Var(&o.seconds, "seconds", 2, "how long a load goes on")
	f.IntVar(&o.idle, "idle", 10000, "idle connections")
	f.DurationVar(&o.rest, "rest", 3*time.Second, "how long proxies rest before their memory is taken")
	loads := f.String("loads", "", "regular expression: only loads with such a name (up1 up16 up128 down1 down16 down128 conn cold echo1 echo64 rate alone beside idle)")
	variants := f.String("variants", "", "regular expression: only such variants (direct relay single double zt-single zt-double)")
	f.StringVar(&o.topology, "topology", "auto", "loopback, hosts (network namespaces, as root), or auto: hosts with a ztunnel")
	e := f.String("entry", "auto", "how connections enter client proxies: redirect (hosts only; needs nft), socks, listener (of ours; a stock proxy is asked by SOCKS5 all the same), or auto: redirect or else socks on hosts, listener on loopback")
	f.StringVar(&o.ztunnel, "ztunnel", "", "path of a stock ztunnel, to measure beside it")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	if o.loads, err = named(*loads); err == nil {
		o.variants, err = named(*variants)
	}
	if err == nil {
		err = o.complete(*e)
	}
	return o, err
}

// named matches whole names, all of them when the expression is empty.
func named(expression string) (*regexp.Regexp, error) {
	if expression == "" {
		expression = ".*"
	}
	return regexp.Compile("^(?:" + expression + ")$")
}

// complete resolves auto and checks what belongs together.
func (o *options) complete(e string) (err error) {
	if o.topology == "auto" {
		o.topology = "loopback"
		if o.ztunnel != "" {
			o.topology = "hosts"
		}
	}
	o.entry = entry(e)
	if e == "auto" {
		o.entry = o.usualEntry()
	}
	switch {
	case o.topology != "loopback" && o.topology != "hosts":
		return fmt.Errorf("topology %q is none of auto, loopback, hosts", o.topology)
	case !slices.Contains([]entry{byRedirect, bySOCKS, byListener}, o.entry):
		return fmt.Errorf("entry %q is none of auto, redirect, socks, listener", e)
	case o.entry == byRedirect && o.topology != "hosts":
		return errors.New("entry redirect needs topology hosts")
	case o.topology == "hosts" && os.Geteuid() != 0:
		return errors.New("network namespaces, and so a stock ztunnel, need root; without it there is loopback")
	case o.topology == "loopback" && o.ztunnel != "":
		return errors.New("a stock ztunnel needs hosts of its own: topology hosts")
	case !slices.ContainsFunc(loads(o.seconds, o.idle), func(l load) bool { return o.loads.MatchString(l.Name) }):
		return fmt.Errorf("no load has a name like %v", o.loads)
	case !slices.ContainsFunc(variantNames, o.variants.MatchString):
		return fmt.Errorf("no variant has a name like %v: they are %s", o.variants, strings.Join(variantNames, ", "))
	case o.runs < 1 || o.seconds <= 0 || o.idle < 1:
		return errors.New("runs, seconds and idle must be positive")
	}
	for _, path := range []*string{&o.bin, &o.ztunnel} { // processes run elsewhere
		if *path != "" {
			if *path, err = filepath.Abs(*path); err != nil {
				return err
			}
			if _, err := os.Stat(*path); err != nil {
				return err
			}
		}
	}
	return nil
}

// usualEntry is what real nodes do, where that is possible.
func (o *options) usualEntry() entry {
	if o.topology == "loopback" {
		return byListener
	}
	if _, err := exec.LookPath("nft"); err == nil {
		return byRedirect
	}
	return bySOCKS
}

func (o options) makeTopology() topology {
	if o.topology == "hosts" {
		return onHosts(o.ztunnel != "")
	}
	return onLoopback()
}
