package file

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// shops describes a mesh with n services, each of which has a workload, and which stand
// behind them; without, the first so many of them are left out, and idle, the workloads are
// members of the first so many no more.
func shops(n, without, idle int) string {
	var b strings.Builder
	b.WriteString("networks: [{name: zero}, {name: west}]\nworkloads:\n")
	for i := range n {
		fmt.Fprintf(&b, "- {uid: p%d, network: zero, addresses: [10.0.0.%d]", i, i+1)
		if i >= idle {
			fmt.Fprintf(&b, ", services: [s%d.default.svc.cluster.local]", i)
		}
		b.WriteString("}\n")
	}
	if without < n {
		b.WriteString("services:\n")
	}
	for i := without; i < n; i++ {
		fmt.Fprintf(&b, "- {name: s%d, ports: [{port: 80}]}\n", i)
	}
	return b.String()
}

// front describes a mesh with n services, all of which one workload serves, or none.
func front(n int, serves bool) string {
	var services, names strings.Builder
	for i := range n {
		fmt.Fprintf(&names, "s%d.default.svc.cluster.local, ", i)
		fmt.Fprintf(&services, "- {name: s%d, ports: [{port: 80}]}\n", i)
	}
	if !serves {
		names.Reset()
	}
	return fmt.Sprintf("networks: [{name: zero}]\nworkloads:\n- {uid: a, network: zero, addresses: [10.0.0.1], services: [%s]}\nservices:\n%s", &names, &services)
}

// exported are shares of network west of the first n services of shops.
func exported(n int) string {
	var b strings.Builder
	b.WriteString("shares:\n")
	for i := range n {
		fmt.Fprintf(&b, "- {network: west, name: s%d, ports: [{port: 80}], identities: [%q], capacity: 5}\n", i, who)
	}
	return b.String()
}

// A file that was cut off at the end of a line: the workloads are there, the services that
// stand behind them are not, or the workloads are members of none any more. How much of
// them may go is the same as of workloads.
func TestServicesThatAChangeTakesAwayCountLikeWorkloads(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to string
		held     string // begin of why; "": it is not
	}{
		{"all services", shops(100, 0, 0), shops(100, 100, 0), "it removes 100 of 100 services, or their last workloads, more than 30 %: s0.default.svc.cluster.local, s1."},
		{"60 of 100", shops(100, 0, 0), shops(100, 60, 0), "it removes 60 of 100 services, "},
		{"31 of 100", shops(100, 0, 0), shops(100, 31, 0), "it removes 31 of 100 services, "},
		{"30 of 100", shops(100, 0, 0), shops(100, 30, 0), ""},
		{"three of four", shops(4, 0, 0), shops(4, 3, 0), "it removes 3 of 4 services, "},
		{"two of three", shops(3, 0, 0), shops(3, 2, 0), ""},
		{"all members", shops(100, 0, 0), shops(100, 0, 100), "it removes 100 of 100 services, "},
		{"20 services and the members of 20 others", shops(100, 0, 0), shops(100, 20, 40), "it removes 40 of 100 services, "},
		{"30 members", shops(100, 0, 0), shops(100, 0, 30), ""},
		{"the members of all, of one workload", front(9, true), front(9, false), "it removes 9 of 9 services, "},
		{"those of two", front(2, true), front(2, false), ""},
		{"services without a workload", front(9, false), front(3, false), "it removes 6 of 9 services, "},
		{"all services, and shares keep their names", shops(9, 0, 9) + exported(9), shops(9, 9, 9) + exported(9), "it removes 9 of 9 services, "},
		{"services that shares alone describe", shops(9, 8, 9) + exported(8), shops(9, 8, 9) + exported(7), ""},
		{"other hostnames", shops(9, 0, 0), strings.ReplaceAll(shops(9, 0, 0), ", ports:", ", hostname: z.test, ports:"), "it removes 9 of 9 services, "},
		{"growth", shops(3, 0, 0), shops(99, 0, 0), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, network := range []string{"", "zero"} { // a gateway, a node proxy
				synctest.Test(t, func(t *testing.T) {
					w := watchFor(t, network, c.from)
					w.after(5 * time.Second)
					before := w.store.Current()
					w.write(c.to)
					w.after(5 * time.Second)
					s := w.Status()
					if why, held := strings.CutPrefix(s.LastError, "held: "); held != (c.held != "") || !strings.HasPrefix(why, c.held) {
						t.Errorf("a process that keeps network %q: %q, want %q", network, s.LastError, c.held)
					}
					if now := w.store.Current(); (now == before) != (c.held != "") {
						t.Errorf("a process that keeps network %q: revision %d after %d", network, now.Revision, before.Revision)
					}
					if s.Held == "" {
						return
					}
					if err := w.Confirm(t.Context(), s.Held); err != nil || w.store.Current() == before {
						t.Errorf("confirmed: %v, revision %d after %d", err, w.store.Current().Revision, before.Revision)
					}
				})
			}
		})
	}
}
