//go:build linux

package main

import (
	"io"
	"os"
	"strings"
	"testing"
)

func parse(args ...string) (options, error) {
	return parseOptions(append([]string{"--bin", ".", "--ztunnel", ""}, args...), io.Discard)
}

func TestOptionsChooseWholeNames(t *testing.T) {
	o, err := parse("--loads", "up1|conn", "--variants", ".*double")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"up1": true, "conn": true, "up16": false, "up128": false} {
		if got := o.loads.MatchString(name); got != want {
			t.Errorf("load %s is chosen: %v, want %v", name, got, want)
		}
	}
	for name, want := range map[string]bool{"double": true, "zt-double": true, "single": false} {
		if got := o.variants.MatchString(name); got != want {
			t.Errorf("variant %s is chosen: %v, want %v", name, got, want)
		}
	}
	if o.topology != "loopback" || o.entry != byListener {
		t.Errorf("without ztunnel it is %s by %s, want loopback by listener", o.topology, o.entry)
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--topology moon", "moon"},
		{"--entry door", "door"},
		{"--entry redirect", "hosts"},
		{"--topology loopback --ztunnel .", "hosts of its own"},
		{"--loads (", "missing closing"},
		{"--runs 0", "positive"},
		{"--seconds 0", "positive"},
		{"--bin nowhere-at-all", "nowhere-at-all"},
		{"up1", `"up1"`},
	} {
		if _, err := parse(strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error that says %s", c.args, err, c.want)
		}
	}
	if os.Geteuid() != 0 {
		if _, err := parse("--topology", "hosts"); err == nil || !strings.Contains(err.Error(), "root") {
			t.Errorf("hosts without root: %v", err)
		}
	}
}

func TestOptionsThatMatchNothing(t *testing.T) {
	if _, err := parse("--loads", "upp1"); err == nil || !strings.Contains(err.Error(), "upp1") {
		t.Errorf("a load that there is not: %v", err)
	}
	if _, err := parse("--variants", "triple"); err == nil || !strings.Contains(err.Error(), "triple") {
		t.Errorf("a variant that there is not: %v", err)
	}
}
