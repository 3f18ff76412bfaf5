package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// pods describes a mesh of network one, and two if it is asked for, with n pods
// from the first-th on.
func pods(first, n int, networks ...string) string {
	var b strings.Builder
	b.WriteString("networks:\n")
	for _, name := range append(networks, "zero") {
		fmt.Fprintf(&b, "- name: %s\n", name)
	}
	b.WriteString("workloads:\n- {uid: a, network: zero, addresses: [10.9.9.9]}\n")
	for i := first; i < first+n; i++ {
		fmt.Fprintf(&b, "- {uid: p%d, network: zero, addresses: [10.0.0.%d]}\n", i, i+1)
	}
	return b.String()
}

func TestAChangeThatRemovesTooMuchIsHeld(t *testing.T) {
	for _, c := range []struct {
		name      string
		from, to  string
		guard     Guard
		objection string
	}{
		{"one of two", pods(0, 1), pods(0, 0), Guard{}, ""},
		{"two of three", pods(0, 2), pods(0, 0), Guard{}, ""},
		{"three of four", pods(0, 3), pods(0, 0), Guard{}, "it removes 3 of 4 workloads, more than 30 %: p0, p1, p2"},
		{"three of ten", pods(0, 9), pods(0, 6), Guard{}, ""},
		{"four of ten", pods(0, 9), pods(0, 5), Guard{}, "it removes 4 of 10 workloads, more than 30 %: p5, p6, p7, p8"},
		{"four of ten for others", pods(0, 9), pods(4, 9), Guard{}, "it removes 4 of 10 workloads, more than 30 %: p0, p1, p2, p3"},
		{"four of ten where half may go", pods(0, 9), pods(0, 5), Guard{MaxRemoval: 0.5}, ""},
		{"all, where all may go", pods(0, 9), "networks: [{name: zero}]\n", Guard{MaxRemoval: 1}, ""},
		{"29 of 100 where 29 % may go", pods(0, 99), pods(0, 70), Guard{MaxRemoval: 0.29}, ""},
		{"30 of 100 where 29 % may go", pods(0, 99), pods(0, 69), Guard{MaxRemoval: 0.29}, "it removes 30 of 100 workloads, more than 29 %: p69, p70, p71, p72, p73 and 25 more"},
		{"growth", pods(0, 1), pods(0, 40), Guard{}, ""},
		{"the own network", pods(0, 9, "one"), pods(0, 9), Guard{Network: "one", MaxRemoval: 1}, `it removes network "one", which this process is on`},
		{"another network", pods(0, 9, "one"), pods(0, 9), Guard{Network: "zero"}, ""},
		{"a network that was never there", pods(0, 9), pods(0, 9), Guard{Network: "one"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, err := Parse("mesh.yaml", []byte(c.from), 1)
			if err != nil {
				t.Fatal(err)
			}
			next, err := Parse("mesh.yaml", []byte(c.to), 2)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.guard.objection(inventory{Snapshot: old}, inventory{Snapshot: next}); got != c.objection {
				t.Errorf("got %q, want %q", got, c.objection)
			}
		})
	}
}

// west describes a mesh with shares and gateways of other networks: each share is name,
// capacity, and each gateway network/name.
func west(shares []string, gateways ...string) string {
	var b strings.Builder
	b.WriteString("networks: [{name: zero}, {name: west}, {name: north}, {name: south}]\nworkloads:\n- {uid: a, network: zero, addresses: [10.9.9.9]}\n")
	for i, g := range gateways {
		if i == 0 {
			b.WriteString("gateways:\n")
		}
		network, name, _ := strings.Cut(g, "/")
		fmt.Fprintf(&b, "- {network: %s, name: %s, address: \"10.8.%d.%d:15008\"}\n", network, name, network[0], name[len(name)-1])
	}
	for i, s := range shares {
		if i == 0 {
			b.WriteString("shares:\n")
		}
		name, capacity, _ := strings.Cut(s, " ")
		fmt.Fprintf(&b, "- {network: west, name: %s, ports: [{port: 80}], identities: [%q], capacity: %s}\n", name, who, capacity)
	}
	return b.String()
}

func TestSharesAndGatewaysThatAChangeRemovesCountLikeWorkloads(t *testing.T) {
	list := func(s ...string) []string { return s }
	web := list("web 64", "shop 64", "cart 64", "mail 64")
	for _, c := range []struct {
		name      string
		from, to  string
		guard     Guard
		objection string
	}{
		{"a quarter of the capacity", west(web), west(web[:3]), Guard{}, ""},
		{"half of it", west(web), west(web[:2]), Guard{}, "it removes 128 of 256 that the shares count, more than 30 %: west/default/cart, west/default/mail"},
		{"half of it where half may go", west(web), west(web[:2]), Guard{MaxRemoval: 0.5}, ""},
		{"all, where all may go", west(web, "west/a"), west(nil), Guard{MaxRemoval: 1}, ""},
		{"much of each", west(web), west(list("web 5", "shop 5", "cart 64", "mail 64")), Guard{}, "it removes 118 of 256 that the shares count, more than 30 %: west/default/shop, west/default/web"},
		{"two of three, each of which counts as one workload", west(list("web 1", "shop 1", "cart 1")), west(list("web 1")), Guard{}, ""},
		{"shares that count as nobody", west(list("web 0", "shop 0", "cart 0")), west(nil), Guard{}, ""},
		{"growth", west(list("web 1")), west(web), Guard{}, ""},
		{"all of its workloads are listed instead", west(list("web 1", "shop 2")), west(list("shop 2")) + "services: [{name: web, ports: [{port: 80}]}]\n", Guard{}, ""},
		{"one of two gateways of a network", west(nil, "west/a", "west/b", "north/a"), west(nil, "west/a", "north/a"), Guard{}, ""},
		{"two gateways have other names", west(nil, "west/a", "west/b", "north/a"), west(nil, "west/c", "west/d", "north/a"), Guard{}, ""},
		{"the only gateway", west(nil, "west/a"), west(nil), Guard{}, "it removes 1 of 1 gateways, more than 30 %: west/a"},
		{"the last gateway of one of two networks", west(nil, "west/a", "north/a"), west(nil, "north/a"), Guard{}, "it removes 1 of 2 gateways, more than 30 %: west/a"},
		{"that of one of four", west(nil, "west/a", "north/a", "south/a", "zero/a"), west(nil, "north/a", "south/a", "zero/a"), Guard{}, ""},
		{"three of six", west(nil, "west/a", "west/b", "north/a", "north/b", "south/a", "south/b"), west(nil, "west/a", "north/a", "south/a"), Guard{}, "it removes 3 of 6 gateways, more than 30 %: north/b, south/b, west/b"},
		{"a gateway moves", west(nil, "west/a"), strings.Replace(west(nil, "west/a"), ":15008", ":15009", 1), Guard{}, ""},
		{"everything", west(web, "west/a"), west(nil), Guard{}, "it removes 256 of 256 that the shares count, more than 30 %: west/default/cart, west/default/mail, west/default/shop, west/default/web; it removes 1 of 1 gateways, more than 30 %: west/a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, err := Parse("mesh.yaml", []byte(c.from), 1)
			if err != nil {
				t.Fatal(err)
			}
			next, err := Parse("mesh.yaml", []byte(c.to), 2)
			if err != nil {
				t.Fatal(err)
			}
			byShares := func(k discovery.Key) bool { return k.Kind != discovery.KindService } // the file lists no service
			if got := c.guard.objection(inventory{Snapshot: old, alone: byShares}, inventory{Snapshot: next}); got != c.objection {
				t.Errorf("got  %q\nwant %q", got, c.objection)
			}
		})
	}
}

// A file that was cut off at the end of a line: the workloads are there, the gateways and
// shares of other networks, which stand behind them, are not.
func TestAFileCutBehindItsWorkloadsIsHeld(t *testing.T) {
	for name, begin := range map[string]func(*testing.T, string) *watched{
		"a gateway":    watch,
		"a node proxy": func(t *testing.T, content string) *watched { return watchFor(t, "zero", content) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var shares []string
				for i := range 100 {
					shares = append(shares, fmt.Sprintf("s%d 50", i))
				}
				w := begin(t, west(shares, "west/gw"))
				w.after(5 * time.Second)
				for _, cut := range []string{west(nil), west(shares), west(nil, "west/gw"), west(shares[:60], "west/gw")} {
					w.write(cut)
					w.after(5 * time.Second)
					if w.Status().Held == "" || w.capacity("s7") == 0 || w.capacity("s99") == 0 || len(w.store.Current().Gateways("west")) == 0 {
						t.Errorf("held %q, capacity %d and %d, %d gateways of a file that was cut off", w.Status().Held, w.capacity("s7"), w.capacity("s99"), len(w.store.Current().Gateways("west")))
					}
				}
				w.write(west(shares[:80], "west/gw"))
				w.after(5 * time.Second)
				if s := w.Status(); s.Held != "" || w.capacity("s99") != 0 {
					t.Errorf("%+v; want a fifth of the shares gone", s)
				}
			})
		})
	}
}

// Without its policies a file lets everybody connect.
func TestAFileWithoutMostPoliciesIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		with := func(first, n int) string {
			text := "networks: [{name: zero}]\nworkloads: [{uid: a, network: zero, addresses: [10.0.0.1]}]\npolicies:\n"
			for i := range n {
				text += fmt.Sprintf("- {apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: p%d, namespace: demo}}\n", first+i)
			}
			return text
		}
		w := watch(t, with(0, 5))
		for _, c := range []struct {
			content string
			held    string
			left    int
		}{
			{with(0, 2), "it removes 3 of 5 policies, more than 30 %: AuthorizationPolicy demo/p2, AuthorizationPolicy demo/p3, AuthorizationPolicy demo/p4", 5},
			{with(0, 3), "", 3},
			{with(3, 3), "it removes 3 of 3 policies, more than 30 %: AuthorizationPolicy demo/p0, AuthorizationPolicy demo/p1, AuthorizationPolicy demo/p2", 3},
			{with(2, 9), "", 9},
		} {
			w.write(c.content)
			w.after(5 * time.Second)
			s, left := w.Status(), len(w.store.Current().Policies().Objects())
			if (s.Held != "") != (c.held != "") || s.Held != "" && !strings.Contains(s.LastError, c.held) || left != c.left {
				t.Errorf("held %q: %s; %d policies in force, want %q with %d", s.Held, s.LastError, left, c.held, c.left)
			}
		}
	})
}

// Without the labels of its workloads a policy with a selector is for nobody; one whose workloads are gone was.
func TestAFileThatLosesLabelsIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods, policies := "", ""
		for i := range 10 {
			pods += fmt.Sprintf("- {uid: a%d, namespace: demo, network: zero, addresses: [10.0.0.%d], labels: {app: web%d, tier: front}}\n", i, i+1, i)
			policies += fmt.Sprintf("- {apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: p%d, namespace: %s}, spec: {selector: {matchLabels: {tier: front, app: web%d}}}}\n", i, []string{"demo", "istio-system"}[i%2], i)
		}
		file := func(pods, policies string) string {
			return "networks: [{name: zero}]\nworkloads:\n" + pods + "policies:\n" + policies
		}
		w := watch(t, file(pods, policies))
		for _, c := range []struct{ content, held string }{
			{file(strings.ReplaceAll(pods, "app: ", "run: "), policies), "it removes 10 of 10 policies"},
			{file(strings.Join(strings.SplitAfter(pods, "\n")[3:], ""), policies), ""},
			{file(pods, policies), ""},
			{file(strings.ReplaceAll(pods, "app: ", "run: "), strings.ReplaceAll(policies, "app: ", "run: ")), ""},
			{file(strings.ReplaceAll(pods, "labels: ", "ports: [], labels: "), strings.ReplaceAll(policies, "app: ", "run: ")), "it removes 10 of 10 policies"},
		} {
			w.write(c.content)
			w.after(5 * time.Second)
			if s := w.Status(); (s.Held != "") != (c.held != "") || !strings.Contains(s.LastError, c.held) {
				t.Errorf("held %q: %s; want %q", s.Held, s.LastError, c.held)
			}
		}
	})
}

// Without the line that says which namespace they are in, policies for everybody are for nobody else.
func TestAFileThatLosesTheRootNamespaceIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := "networks: [{name: zero}]\nworkloads: [{uid: a, network: zero, addresses: [10.0.0.1]}]\npolicies:\n"
		for i := range 5 {
			text += fmt.Sprintf("- {apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: p%d, namespace: mesh}}\n", i)
		}
		w := watchFor(t, "zero", text+"rootNamespace: mesh\n")
		w.write(text)
		w.after(5 * time.Second)
		if s := w.Status(); s.Held == "" || !strings.Contains(s.LastError, "it removes 5 of 5 policies") || w.store.Current().Policies().Root() != "mesh" {
			t.Errorf("held %q: %s; policies of %s are for everybody", s.Held, s.LastError, w.store.Current().Policies().Root())
		}
		w.write("rootNamespace: demo\n" + strings.ReplaceAll(text, "namespace: mesh", "namespace: demo") + strings.Join(strings.SplitAfter(text, "\n")[3:], ""))
		w.after(5 * time.Second)
		if s := w.Status(); s.Held == "" {
			t.Error("policies that were for everybody are for the workloads of their namespace alone, and nothing is held")
		}
		text += "rootNamespace: mesh\nnetworks: [{name: zero}, {name: one}]\n"
		w.write(strings.Replace(text[len("networks: [{name: zero}]\n"):], "workloads: [", "workloads: [{uid: b, network: one, addresses: [10.0.0.2]}, ", 1))
		w.after(5 * time.Second)
		if s := w.Status(); s.Held != "" || !w.store.Current().HasNetwork("one") {
			t.Errorf("a workload elsewhere more is held: %s", s.LastError)
		}
	})
}

// What other networks tell is no part of the file, and a change of the file removes none
// of it.
func TestWhatOthersTellIsNotCountedAsTheFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const here = "networks: [{name: one}, {name: west}%s]\nworkloads: [{uid: a, network: one, addresses: [10.0.0.1]}]\n%s"
		const gateway = "gateways: [{network: west, name: gw, address: \"10.0.0.9:15008\"}]\n"
		broken := "shares: [{network: west, name: web, ports: [{port: 80}], identities: [nobody], capacity: 50}]\n" // the file's own word of it is out
		w := watchFor(t, "one", fmt.Sprintf(here, "", broken+gateway))
		w.Apply(toldShare("web", 50, who))
		w.Apply(toldShare("shop", 50, who))
		w.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindGateway, Source: discovery.Told, Name: "west/other"}, Record: discovery.Gateway{Network: "west", Name: "other", Address: netip.MustParseAddrPort("10.0.0.8:15008")}})
		w.after(5 * time.Second)
		w.write(fmt.Sprintf(here, ", {name: north}", ""))
		w.after(5 * time.Second)
		if s := w.Status(); s.Held != "" || w.capacity("web") == 0 || w.capacity("shop") == 0 || !w.store.Current().HasNetwork("north") {
			t.Errorf("%+v; want nothing held", s)
		}
	})
}

func TestHeldContentWaitsForItsNameInTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, pods(0, 9))
		w.after(10 * time.Second)
		w.write(pods(0, 3))
		w.after(time.Minute)
		w.want("p8", 1)
		l := w.lines()
		if len(l) != 1 || l[0]["level"] != "error" || l[0]["reason"] != "it removes 6 of 10 workloads, more than 30 %: p3, p4, p5, p6, p7 and 1 more" {
			t.Fatalf("logged %v; want one error with the reason", l)
		}
		id, _ := l[0]["confirm"].(string)
		if len(id) != 12 || !strings.Contains(l[0]["remedy"].(string), id) {
			t.Fatalf("logged %v; want the name that confirms", l[0])
		}
		if s := w.Status(); s.Held != id || !s.Failing || !strings.Contains(s.LastError, "6 of 10") || s.Revision != 1 || time.Since(s.LastSuccess) < time.Minute {
			t.Errorf("status %+v; want it held since a minute", s)
		}
		w.write("confirm: 000000000000\n" + pods(0, 3))
		w.after(5 * time.Second)
		w.want("p8", 1)
		w.write("# a comment changes nothing\n" + pods(0, 3) + "confirm: \"" + id + "\"\n")
		w.after(5 * time.Second)
		w.want("p2", 2)
		if s := w.Status(); s.Held != "" || s.Failing || s.Revision != 2 || time.Since(s.LastSuccess) > DefaultEvery || s.LastError != "" || !s.LastErrorTime.IsZero() {
			t.Errorf("status %+v; want revision 2 in force, and no error: it was meant", s)
		}
		w.lines()
		w.write("confirm: \"" + id + "\"\n") // the name of other content is worth nothing
		w.after(5 * time.Second)
		w.write("networks: [{name: zero}]\nconfirm: \"" + id + "\"\n")
		w.after(5 * time.Second)
		w.want("p2", 2)
	})
}

func TestServicesThatLoseTheirLastWorkloadAreNamed(t *testing.T) {
	with := func(members int) string {
		text := pods(0, 9) + "services:\n- {name: shop, namespace: demo, ports: [{port: 80}]}\n- {name: cart, namespace: demo, ports: [{port: 80}]}\n"
		for i := range members {
			text = strings.Replace(text, fmt.Sprintf("10.0.0.%d]}", i+1), fmt.Sprintf("10.0.0.%d], services: [shop.demo.svc.cluster.local]}", i+1), 1)
		}
		return text
	}
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, with(2))
		w.after(10 * time.Second)
		w.write(with(1))
		w.after(5 * time.Second)
		w.want("p8", 2)
		for _, l := range w.lines() {
			if l["level"] != "info" {
				t.Errorf("a service with a workload left: %v", l)
			}
		}
		w.write(with(0))
		w.after(5 * time.Second)
		w.want("p8", 3)
		if l := w.lines(); len(l) != 2 || l[1]["level"] != "warn" || l[1]["services"] != "shop.demo.svc.cluster.local" {
			t.Errorf("logged %v; want the change and a warning that names the service", l)
		}
	})
	old, err := Parse("mesh.yaml", []byte(with(2)), 1)
	if err != nil {
		t.Fatal(err)
	}
	next, err := Parse("mesh.yaml", []byte(pods(4, 5)), 2)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := (Guard{}).objection(inventory{Snapshot: old}, inventory{Snapshot: next}), "it removes 4 of 10 workloads, more than 30 %: p0, p1, p2, p3; no workload is left of shop.demo.svc.cluster.local"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHeldContentIsConfirmedByCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, pods(0, 9))
		if err := w.Confirm(t.Context(), ""); !errors.Is(err, ErrNotHeld) {
			t.Errorf("nothing is held: %v", err)
		}
		w.after(10 * time.Second)
		w.write(pods(0, 3))
		w.after(5 * time.Second)
		id := w.Status().Held
		if err := w.Confirm(t.Context(), "000000000000"); !errors.Is(err, ErrNotHeld) || !strings.Contains(err.Error(), id) {
			t.Errorf("another name: %v; want an error that gives the right one", err)
		}
		w.want("p8", 1)
		if err := w.Confirm(t.Context(), id); err != nil {
			t.Error(err)
		}
		w.want("p2", 2)
		if s := w.Status(); s.Held != "" || s.Failing || s.Revision != 2 {
			t.Errorf("status %+v; want revision 2 in force", s)
		}
		w.after(time.Minute) // the file says the same
		w.want("p2", 2)
		if err := w.Confirm(t.Context(), id); !errors.Is(err, ErrNotHeld) {
			t.Errorf("twice: %v", err)
		}
	})
}

func TestAHeldChangeThatIsTakenBackIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, pods(0, 9))
		w.after(10 * time.Second)
		w.write(pods(0, 3))
		w.after(5 * time.Second)
		id := w.Status().Held
		w.write(pods(0, 9))
		w.after(5 * time.Second)
		if s := w.Status(); s.Held != "" || s.Failing {
			t.Errorf("status %+v; want nothing held", s)
		}
		if err := w.Confirm(t.Context(), id); !errors.Is(err, ErrNotHeld) {
			t.Errorf("confirmed what the file no longer says: %v", err)
		}
		w.want("p8", 1)
	})
}

// What is confirmed is what the file says now, not what it said at the last look.
func TestConfirmReadsTheFileFirst(t *testing.T) {
	old := time.Now().Add(-time.Hour)
	for name, change := range map[string]func(w *watched){
		"restored": func(w *watched) { w.write(pods(0, 9)) },
		"restored long ago": func(w *watched) {
			w.write(pods(0, 9))
			os.Chtimes(w.path, old, old)
		},
		"another change": func(w *watched) {
			w.write(pods(0, 1))
			os.Chtimes(w.path, old, old)
		},
		"rewritten in place, same size and time": func(w *watched) {
			info, err := os.Stat(w.path)
			if err != nil {
				w.t.Fatal(err)
			}
			os.WriteFile(w.path, []byte(pods(3, 3)), 0o644)
			os.Chtimes(w.path, info.ModTime(), info.ModTime())
		},
		"removed": func(w *watched) { os.Remove(w.path) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watch(t, pods(0, 9))
				w.after(10 * time.Second)
				w.write(pods(0, 3))
				w.after(5*time.Second + DefaultEvery/2)
				id := w.Status().Held
				change(w)
				if err := w.Confirm(t.Context(), id); !errors.Is(err, ErrNotHeld) {
					t.Errorf("confirmed what the file no longer says: %v", err)
				}
				w.want("p8", 1)
			})
		})
	}
}

func TestNothingIsHeldWhileTheFileCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, pods(0, 9))
		w.after(10 * time.Second)
		w.write(pods(0, 3))
		w.after(5 * time.Second)
		id := w.Status().Held
		os.Remove(w.path)
		w.after(5 * time.Second)
		if s := w.Status(); s.Held != "" || !s.Failing {
			t.Errorf("status %+v; want it failing and nothing held", s)
		}
		w.write(pods(0, 3))
		w.after(5 * time.Second)
		if s := w.Status(); s.Held != id {
			t.Errorf("status %+v; want %s held again", s, id)
		}
		if n := w.holds.Load(); n != 1 {
			t.Errorf("one content was held, and counted %d times", n)
		}
	})
}

func TestOneContentIsCountedOnceHoweverOftenItIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, pods(0, 9))
		for _, content := range []string{pods(0, 3), wrong} {
			w.after(10 * time.Second)
			w.write(content)
			for range 3 {
				w.after(5 * time.Second)
				w.Reload()
			}
		}
		w.after(5 * time.Second)
		if held, refused := w.holds.Load(), w.Rejected(); held != 1 || refused != 1 {
			t.Errorf("one content was held and one refused; counted were %d and %d", held, refused)
		}
	})
}

func TestMaxRemovalIsAboveZeroAndAtMostOne(t *testing.T) {
	for share, good := range map[float64]bool{0: false, -0.1: false, 1.1: false, math.NaN(): false, 0.01: true, DefaultMaxRemoval: true, 1: true} {
		if err := (Config{File: "mesh.yaml", MaxRemoval: share}).Validate(); (err == nil) != good {
			t.Errorf("discovery.maxRemoval: %v: %v", share, err)
		}
	}
}

func TestConfirmWithoutRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := (&Watcher{}).Confirm(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestStatusAndMetricsTellOfAFileThatCannotBeReadOrIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		w.after(10 * time.Second)
		if s := w.Status(); s.Failing || time.Since(s.LastSuccess) > DefaultEvery || s.File != w.path {
			t.Errorf("status %+v; want success a moment ago", s)
		}
		w.write(wrong)
		w.after(time.Minute)
		if s := w.Status(); !s.Failing || !strings.Contains(s.LastError, "onne") || time.Since(s.LastSuccess) < time.Minute || time.Since(s.LastErrorTime) < 55*time.Second {
			t.Errorf("status %+v; want the mistake, for a minute", s)
		}
		os.Remove(w.path)
		w.after(5 * time.Second)
		if s := w.Status(); !s.Failing || !strings.Contains(s.LastError, "no such file") {
			t.Errorf("status %+v; want that there is no file", s)
		}
		const want = "# HELP isthmus_discovery_changes_total Changes of the discovery file, by result (held: pending confirmation).\n# TYPE isthmus_discovery_changes_total counter\n" +
			"isthmus_discovery_changes_total{result=\"accepted\"} 0\nisthmus_discovery_changes_total{result=\"held\"} 0\nisthmus_discovery_changes_total{result=\"refused\"} 1\n" +
			"# HELP isthmus_discovery_failing 1 while the current discovery file is not in force.\n# TYPE isthmus_discovery_failing gauge\nisthmus_discovery_failing 1\n" +
			"# HELP isthmus_discovery_revision Revision of the mesh description in force.\n# TYPE isthmus_discovery_revision gauge\nisthmus_discovery_revision 1\n"
		c := NewCollector(w.Watcher)
		if err := testutil.CollectAndCompare(c, strings.NewReader(want), "isthmus_discovery_changes_total", "isthmus_discovery_failing", "isthmus_discovery_revision"); err != nil {
			t.Error(err)
		}
		if problems, err := testutil.CollectAndLint(c); err != nil || len(problems) > 0 {
			t.Errorf("%v %v", problems, err)
		}
		w.write(wrong) // the same mistake again
		w.after(5 * time.Second)
		if s := w.Status(); !s.Failing || !strings.Contains(s.LastError, "onne") {
			t.Errorf("status %+v; want the mistake again", s)
		}
	})
}

// A release that adds keys to the file keeps the identifiers of content without them.
func TestIdentifierIgnoresKeysThatAreNotSet(t *testing.T) {
	type item struct {
		Name  string `yaml:"name"`
		Ready *bool  `yaml:"ready"`
	}
	type place struct {
		Zone string `yaml:"zone"`
	}
	type laterItem struct {
		Place place            `yaml:"place"`
		Ready *bool            `yaml:"ready"`
		More  []netip.AddrPort `yaml:"more"`
		Title string           `yaml:"name"`
		Limit *uint32          `yaml:"limit"`
	}
	type config struct {
		Domain string `yaml:"domain"`
		Items  []item `yaml:"items"`
	}
	type later struct {
		Root   string            `yaml:"root"`
		Items  []laterItem       `yaml:"items"`
		Labels map[string]string `yaml:"labels"`
		Domain string            `yaml:"domain"`
		Since  time.Time         `yaml:"since"`
		Own    bool              `yaml:"-"`
	}
	text := func(v, unset any) string {
		t.Helper()
		b, err := json.Marshal(setOf(reflect.ValueOf(v), reflect.ValueOf(unset)))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	not := false
	before := text(config{"mesh", []item{{"a", &not}, {"b", nil}}}, config{Domain: "mesh"})
	after := later{Root: "system", Domain: "mesh", Items: []laterItem{{Title: "a", Ready: &not}, {Title: "b"}}}
	if got := text(after, later{Root: "system", Domain: "mesh"}); got != before || before != `{"items":[{"name":"a","ready":false},{"name":"b"}]}` {
		t.Errorf("%s with more keys, %s without", got, before)
	}
	seen := map[string]bool{before: true}
	for i, change := range []func(*later){
		func(l *later) { l.Root = "" },
		func(l *later) { l.Labels = map[string]string{"a": ""} },
		func(l *later) { l.Items = append(l.Items, laterItem{}) },
		func(l *later) { l.Items = append(l.Items, laterItem{Ready: &not}) },
		func(l *later) { l.Items = append(l.Items, laterItem{Place: place{"z"}}) },
		func(l *later) { l.Items = append(l.Items, laterItem{Limit: new(uint32)}) },
		func(l *later) {
			l.Items = append(l.Items, laterItem{More: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1")}})
		},
		func(l *later) { l.Since = time.Unix(1, 0) },
	} {
		c := after
		c.Items = slices.Clone(after.Items)
		change(&c)
		got := text(c, later{Root: "system", Domain: "mesh"})
		if seen[got] {
			t.Errorf("change %d: %s again", i, got)
		}
		seen[got] = true
	}
}

// The same text has the same identifier in each release.
func TestIdentifierStays(t *testing.T) {
	const text = `
networks: [{name: east, nodes: [n]}, {name: west}]
gateways: [{name: gw, network: west, address: "192.0.2.1:15008", locality: {zone: a}, sources: [192.0.2.0/24]}]
services: [{name: web, vips: [240.0.0.1], global: true, ports: [{port: 80, targetPort: 8080}]}]
shares: [{network: west, name: web, ports: [{port: 80}], created: 2026-11-22T10:00:00Z, capacity: 0}]
policies: [{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: p}, spec: {action: DENY}}]
workloads: [{uid: a, network: east, addresses: [10.0.0.1], labels: {app: web}, ready: false}]
`
	_, c, err := decode("mesh.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if got := identifier(c, nil); got != "986de86d3766" {
		t.Errorf("%s: the identifier of the same text has changed", got)
	}
	c.TrustDomain = "other.example"
	if identifier(c, nil) == "986de86d3766" {
		t.Error("another trust domain has the same identifier")
	}
}
