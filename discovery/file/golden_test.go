package file

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/mesh"
)

var update = flag.Bool("update", false, "rewrite the *.out.txt files")

// TestTranslation: case.in.yaml is either the snapshot or the problems in
// case.out.txt. Rewritten by go test ./discovery/file -update, reviewed as
// code: every line is what an operator reads.
func TestTranslation(t *testing.T) {
	files, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(files) < 20 {
		t.Fatalf("found %d cases (%v)", len(files), err)
	}
	for _, in := range files {
		name := strings.TrimSuffix(filepath.Base(in), ".in.yaml")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(in)
			if err != nil {
				t.Fatal(err)
			}
			s, err := Parse("mesh.yaml", data, 7)
			if refused, bad := err != nil, strings.HasPrefix(name, "bad_"); refused != bad {
				t.Errorf("refused %t (%v), want %t", refused, err, bad)
			}
			got := ""
			if err != nil {
				got = err.Error() + "\n"
			} else {
				got = describe(s)
			}
			golden := strings.TrimSuffix(in, ".in.yaml") + ".out.txt"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// describe writes everything that a snapshot knows, one thing per line.
func describe(s *mesh.Snapshot) string {
	var b strings.Builder
	fmt.Fprintf(&b, "revision %d\n", s.Revision)
	for _, n := range s.GatewayNetworks() {
		for _, g := range s.Gateways(n) {
			fmt.Fprintf(&b, "gateway %s/%s at %s, federation %s, %s, locality %+v, drained %t, QUIC at %v\n", n, g.Name, g.Address, g.Federation, g.Identity, g.Locality, g.Drained, g.Dialled(true))
		}
	}
	for _, svc := range s.Services() {
		fmt.Fprintf(&b, "service %s (%s/%s) aliases %s vips %s scope %s takeover %t %s from %q ports %+v others %v publishNotReady %t\n", svc.Hostname, svc.Namespace, svc.Name, svc.Aliases, svc.VIPs, svc.Scope, svc.Takeover, svc.Distribution, svc.DistributionFrom, svc.Ports, svc.Others, svc.PublishNotReady)
		for _, id := range s.Identities(svc, "") {
			fmt.Fprintf(&b, "  identity %s\n", id)
		}
		for _, n := range s.Networks(svc) {
			if x := s.Told(svc, n); x != nil {
				fmt.Fprintf(&b, "  share on %s: %+v\n", n, *x)
			}
			for _, w := range s.Members(svc, n) {
				fmt.Fprintf(&b, "  member on %s: %s\n", n, w.UID)
			}
		}
	}
	for _, w := range s.Workloads() {
		fmt.Fprintf(&b, "workload %s %q on %s node %q cluster %q at %s, %s, locality %+v, %s, capacity %d, endpoint %s\n",
			w.UID, w.Name, w.Network, w.Node, w.Cluster, w.Addresses, w.Identity, w.Locality, w.State, w.Capacity, w.Endpoint)
	}
	for _, w := range s.Workloads() {
		if len(w.Labels) > 0 {
			fmt.Fprintf(&b, "labels of %s: %v\n", w.UID, w.Labels)
		}
	}
	for _, o := range s.Policies().Objects() {
		fmt.Fprintf(&b, "policy %+v\n", o)
	}
	return b.String()
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, in := range files {
		data, err := os.ReadFile(in)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("mesh.yaml", data, 1)
		if (s == nil) == (err == nil) {
			t.Fatalf("snapshot %v with error %v; want exactly one", s, err)
		}
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if !strings.HasPrefix(line, "mesh.yaml:") {
					t.Errorf("error without a position: %q", line)
				}
			}
			return
		}
		describe(s)
	})
}
