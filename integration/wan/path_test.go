//go:build linux

package wan

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/wan"
)

// isthmus returns what a command of isthmus prints in a host.
func isthmus(t *testing.T, host string, args ...string) string {
	t.Helper()
	var out []byte
	began := time.Now()
	err := here.In(host, func() error {
		cmd := exec.Command(filepath.Join(here.bin, "isthmus"), args...)
		cmd.Dir = here.Dir
		out, _ = cmd.CombinedOutput() // its exit code is that of everything that it looks at
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("isthmus %v (%v):\n%s", args, time.Since(began).Round(time.Millisecond), out)
	return string(out)
}

func TestCheckNamesPathFaults(t *testing.T) {
	need(t)
	const udpRemedy = "allow UDP port 15008 in firewalls, Services and NetworkPolicies, or set lines.transport: tcp on gateways and node proxies"
	toWest := fmt.Sprintf("network %q at %s: ", "west", gatewayAddress)
	for _, c := range []struct {
		name         string
		there, back  wan.Conditions // besides the delay of the line
		found        []string
		remedy       string
		alsoNotFound string
	}{
		{"a good path", wan.Conditions{}, wan.Conditions{}, nil, "", ""},
		{"UDP blocked to it", wan.Conditions{NoUDP: true}, wan.Conditions{}, []string{"UDP to it is blocked or dropped: no response in 3s"}, udpRemedy, "✓ ISTH-315"},
		{"UDP blocked from it", wan.Conditions{}, wan.Conditions{NoUDP: true}, []string{"UDP to it is blocked or dropped: no response in 3s"}, udpRemedy, "✓ ISTH-315"},
		{"packets over 1300 bytes", wan.Conditions{Most: 1300}, wan.Conditions{Most: 1300}, []string{"TCP connects, packets over 1300 bytes to it are dropped"}, "set lines.maxSegment: 1260 on gateways and node proxies, or fix the tunnel's MTU", ""},
		{"packets over 1400 bytes from it", wan.Conditions{}, wan.Conditions{Most: 1400}, []string{"TCP connects, packets over 1400 bytes from it are dropped"}, "set lines.maxSegment: 1360 on gateways and node proxies, or fix the tunnel's MTU", ""},
		{"5 % loss to it", wan.Conditions{Loss: 0.05}, wan.Conditions{}, []string{"% of the packets to it are lost"}, "find the link that loses packets", "packets from it are lost"},
		{"5 % loss from it", wan.Conditions{}, wan.Conditions{Loss: 0.05}, []string{"% of the packets from it are lost"}, "find the link that loses packets", "packets to it are lost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.there.Most+c.back.Most > 0 {
				notShort(t) // 13 s each
			}
			c.there.Delay, c.back.Delay = line.Delay, line.Delay
			here.link.There.Set(c.there)
			here.link.Back.Set(c.back)
			defer here.link.Set(line)
			got := isthmus(t, "spare", "check", "--admin", spareAdmin)
			if len(c.found) == 0 && (!strings.Contains(got, "✓ ISTH-314") || !strings.Contains(got, "✓ ISTH-315") || !strings.Contains(got, "UDP passes both ways")) {
				t.Error("the path has a finding, or UDP was not checked")
			}
			for _, f := range c.found {
				if !strings.Contains(got, f) || !strings.Contains(got, toWest) {
					t.Errorf("no line has %q", toWest+f)
				}
			}
			if !strings.Contains(got, c.remedy) {
				t.Errorf("no line has the remedy %q", c.remedy)
			}
			if c.alsoNotFound != "" && strings.Contains(got, c.alsoNotFound) {
				t.Errorf("a line has %q", c.alsoNotFound)
			}
		})
	}
}

func TestCheckMeasuresThroughput(t *testing.T) {
	need(t)
	if got := isthmus(t, "spare", "check", "--admin", spareAdmin, "--path", "west"); !strings.Contains(got, "Mbit/s to it on one connection") {
		t.Error("no throughput")
	}
	if got := isthmus(t, "spare", "check", "--admin", spareAdmin, "--path", "wst"); !strings.Contains(got, `path: "wst": no gateway of a network of that name has a known address: did you mean "west"?`) {
		t.Error("an unknown network is not named")
	}
}

func TestNodeProxyNamesDroppedPackets(t *testing.T) {
	for _, open := range []bool{false, true} { // whether a session is open when it begins
		t.Run(fmt.Sprintf("open session %v", open), func(t *testing.T) {
			need(t)
			notShort(t)
			const found = "TCP connects, packets over 1300 bytes to it are dropped: set lines.maxSegment: 1260 on gateways and node proxies, or fix the tunnel's MTU"
			here.forget(t, double.host)
			if open {
				if _, err := here.ask(double, 64<<10); err != nil {
					t.Fatal(err)
				}
			}
			narrow := line
			narrow.Most = 1300
			here.link.Set(narrow)
			defer func() { here.link.Set(line); here.forget(t, double.host) }() // whose next check comes later
			if _, err := here.ask(double, 64<<10); err == nil {
				t.Error("a connection succeeds although large packets are dropped")
			}
			if open { // the next session falls silent too
				here.ask(double, 64<<10)
				here.ask(double, 64<<10)
			}
			waitFor(t, "status has the finding", func() error {
				time.Sleep(time.Second)
				if got := isthmus(t, double.host, "status", "--admin", admin); !strings.Contains(got, "problem: path to gateway gw-west of network west: "+found) {
					return errors.New("it has not")
				}
				return nil
			})
			if got := isthmus(t, double.host, "explain", "shop", "far-ours.demo.svc.cluster.local:80", "--admin", admin); !strings.Contains(got, "; path: "+found) {
				t.Error("explain has no finding")
			}
		})
	}
}
