package file

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// odd are objects as every cluster has them, each with what becomes of it.
var odd = []struct{ section, record, object, problem string }{
	{"workloads", "{uid: shares-a-host, network: one, addresses: [10.0.0.1], ready: false}", `workload "shares-a-host"`, "conflict"},
	{"workloads", "{uid: finished-job, network: one, addresses: [10.0.0.2], state: notReady}", `workload "finished-job"`, "conflict"},
	{"workloads", "{uid: pending, network: one}", `workload "pending"`, "missing"},
	{"workloads", "{uid: elsewhere, network: onne, addresses: [10.9.0.1]}", `workload "elsewhere"`, "reference"},
	{"workloads", "{uid: odd-state, network: one, addresses: [10.9.0.2], state: asleep}", `workload "odd-state"`, "value"},
	{"services", "{name: headless}", `service "default/headless"`, "missing"},
	{"services", "{name: eastwest, ports: [{port: 15008}, {port: 80}]}", `service "default/eastwest"`, "unsupported"},
	{"services", "{name: twice, ports: [{port: 80}, {port: 80}]}", `service "default/twice"`, "conflict"},
	{"services", "{name: near, trafficDistribution: nearby, ports: [{port: 80}]}", `service "default/near"`, "value"},
	{"services", "{name: wide, scope: planet, ports: [{port: 80}]}", `service "default/wide"`, "value"},
	{"services", "{name: quic, ports: [{port: 53, protocol: QUIC}]}", `service "default/quic"`, "value"},
	{"services", "{name: usurper, hostname: web.default.svc.cluster.local, ports: [{port: 80}]}", `service "default/usurper"`, "conflict"},
	{"gateways", "{name: gw, network: one, address: 10.8.0.1:0}", `gateway "one/gw"`, "value"},
	{"networks", "{name: Two}", `network "Two"`, "value"},
}

// good is a mesh of n pods of one service, and the odd objects given.
func good(n int, odd ...struct{ section, record, object, problem string }) string {
	lists := map[string][]string{"networks": {"{name: one}"}, "services": {"{name: web, global: true, ports: [{port: 80}]}"}}
	for i := range n {
		lists["workloads"] = append(lists["workloads"], fmt.Sprintf("{uid: pod-%d, network: one, addresses: [10.0.%d.%d], services: [web.default.svc.cluster.local]}", i, (i+1)>>8, (i+1)&255))
	}
	for _, o := range odd {
		lists[o.section] = append(lists[o.section], o.record)
	}
	var b strings.Builder
	for _, section := range []string{"networks", "gateways", "services", "workloads"} {
		if len(lists[section]) > 0 {
			fmt.Fprintf(&b, "%s:\n- %s\n", section, strings.Join(lists[section], "\n- "))
		}
	}
	return b.String()
}

func members(s *mesh.Snapshot) int {
	return len(s.Members(s.Service("web.default.mesh.internal"), "one"))
}

// One odd object costs itself and nothing else, at the start and on reload; it is
// in Status, counted, and logged once; and mended it comes in.
func TestAnOddObjectIsLeftOutAlone(t *testing.T) {
	const pods = 200
	for _, o := range odd {
		t.Run(o.object, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				check := func(w *watched, when string) {
					t.Helper()
					if got := members(w.store.Current()); got != pods {
						t.Errorf("%s: %d pods are in, want %d", when, got, pods)
					}
					s := w.Status()
					if s.Failing || len(s.Problems) != 1 || s.Problems[0].Object != o.object || s.Problems[0].Cause != o.problem || s.Problems[0].Line == 0 || s.ProblemsByCause[o.problem] != 1 {
						t.Errorf("%s: status %+v; want one problem of %s, %s", when, s, o.object, o.problem)
					}
					var told []string
					for _, l := range w.lines() {
						if l["level"] == "error" {
							told = append(told, fmt.Sprint(l["object"]))
						}
					}
					if len(told) != 1 || told[0] != o.object {
						t.Errorf("%s: errors about %q, want one about %s", when, told, o.object)
					}
				}
				w := watch(t, good(pods, o))
				w.after(time.Minute)
				w.Reload()
				w.after(time.Minute)
				check(w, "at the start")

				w = watch(t, good(pods))
				w.after(10 * time.Second)
				w.write(good(pods, o))
				w.after(time.Minute)
				check(w, "on reload")
				want := "# HELP isthmus_discovery_problems Objects, or single fields, in the mesh description in force that are not used, by kind of problem.\n# TYPE isthmus_discovery_problems gauge\n"
				for _, c := range []string{"conflict", "missing", "reference", "unsupported", "value"} {
					n := 0
					if c == o.problem {
						n = 1
					}
					want += fmt.Sprintf("isthmus_discovery_problems{kind=%q} %d\n", c, n)
				}
				if err := testutil.CollectAndCompare(NewCollector(w.Watcher), strings.NewReader(want), "isthmus_discovery_problems"); err != nil {
					t.Error(err)
				}
				w.write(good(pods))
				w.after(time.Minute)
				if s := w.Status(); len(s.Problems) != 0 || len(s.ProblemsByCause) != 0 || s.Failing {
					t.Errorf("mended: status %+v", s)
				}
				if gone, deleted := endings(w); gone != 0 || deleted != 1 {
					t.Errorf("%d lines say that it is gone, %d that its object is; want 0 and 1", gone, deleted)
				}
			})
		})
	}
}

// endings counts the lines since they were last taken that say that a problem is gone,
// and that it is gone with its object.
func endings(w *watched) (gone, deleted int) {
	for _, l := range w.lines() {
		switch l["message"] {
		case "a problem of the discovery file is gone":
			gone++
		case "a problem of the discovery file is gone with its object":
			deleted++
		}
	}
	return gone, deleted
}

func TestAProblemThatIsMendedIsNotGoneWithItsObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := odd[4]
		w := watch(t, good(2, pod))
		w.after(10 * time.Second)
		pod.record = strings.Replace(pod.record, "asleep", "ready", 1)
		w.write(good(2, pod))
		w.after(10 * time.Second)
		if gone, deleted := endings(w); gone != 1 || deleted != 0 {
			t.Errorf("%d lines say that it is gone, %d that its object is; want 1 and 0", gone, deleted)
		}
	})
}

// Among many pods it is the same for one odd object of each kind after the other.
func TestAnOddObjectIsLeftOutAloneAmongMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = manyPods
		w := watch(t, good(pods))
		w.after(10 * time.Second)
		for _, o := range odd {
			w.write(good(pods, o))
			w.after(10 * time.Second)
			if s := w.Status(); members(w.store.Current()) != pods || s.Failing || len(s.Problems) != 1 || s.Problems[0].Object != o.object || s.Problems[0].Cause != o.problem {
				t.Errorf("%s: %d pods are in, want %d; status %+v, want one problem, %s", o.object, members(w.store.Current()), pods, s, o.problem)
			}
		}
		w.write(good(pods))
		w.after(10 * time.Second)
		if s := w.Status(); members(w.store.Current()) != pods || len(s.Problems) != 0 || s.Failing {
			t.Errorf("mended: %d pods, status %+v", members(w.store.Current()), s)
		}
	})
}

// A workload that lost its address to another one gets it when that goes, although
// nothing about itself has changed.
func TestTheLoserComesInWhenTheWinnerGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		job := odd[1]
		w := watch(t, good(2, job))
		w.after(10 * time.Second)
		if w.store.Current().Workload("finished-job") != nil {
			t.Fatal("two workloads have one address")
		}
		w.write(good(1, job)) // pod-1, at 10.0.0.2, is gone
		w.after(10 * time.Second)
		if w.store.Current().Workload("finished-job") == nil || len(w.Status().Problems) != 0 {
			t.Errorf("the address is free and the other workload is not in; problems %+v", w.Status().Problems)
		}
	})
}

// An edited pod is that pod's change and no other's; a content that says the same
// in other words is none.
func TestAnEditIsAChangeOfWhatItNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, good(50))
		w.after(10 * time.Second)
		sub := w.store.Subscribe()
		defer sub.Close()
		before := w.store.Current()
		w.write("# a comment\n" + good(50))
		w.after(10 * time.Second)
		if w.store.Current() != before {
			t.Error("a comment made another snapshot")
		}
		w.write(strings.Replace(good(50), "{uid: pod-7, ", "{uid: pod-7, ready: false, ", 1))
		w.after(10 * time.Second)
		next, changes := sub.Take()
		if _, named := changes.Workloads["pod-7"]; changes.All || len(changes.Workloads) != 1 || !named || len(changes.Services) != 1 || len(changes.Gateways)+len(changes.Networks) != 0 {
			t.Errorf("changes %+v; want pod-7 and its service", changes)
		}
		if next.Revision != before.Revision+1 || next.Workload("pod-8") != before.Workload("pod-8") {
			t.Error("the rest of the snapshot is not what it was")
		}
	})
}

// A file of objects that cannot be used is as one that lacks them.
func TestManyOddObjectsAreHeldAsRemovals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, good(9))
		w.after(10 * time.Second)
		w.write(strings.ReplaceAll(good(9), "network: one", "network: onne"))
		w.after(10 * time.Second)
		if s := w.Status(); s.Held == "" || members(w.store.Current()) != 9 {
			t.Errorf("status %+v with %d pods; want it held", s, members(w.store.Current()))
		}
		w.write(strings.ReplaceAll(good(9), "{name: one}", "{name: One}"))
		w.after(10 * time.Second)
		if s := w.Status(); s.Held == "" || members(w.store.Current()) != 9 {
			t.Errorf("without its network: status %+v with %d pods; want it held", s, members(w.store.Current()))
		}
	})
}

func TestStatusListsTheFirstProblemsAndCountsAll(t *testing.T) {
	text := "networks: [{name: one}]\nworkloads:\n" + strings.Repeat("- {uid: a, network: one, addresses: [10.0.0.1]}\n", 300)
	w := &watched{t: t, path: t.TempDir() + "/mesh.yaml", store: &discovery.Store{}}
	w.write(text)
	var err error
	if w.Watcher, err = Open(w.path, w.store); err != nil {
		t.Fatal(err)
	}
	if s := w.Status(); len(s.Problems) != maxListed || s.ProblemsByCause["conflict"] != 299 {
		t.Errorf("%d problems listed and %v counted; want %d and 299", len(s.Problems), s.ProblemsByCause, maxListed)
	}
}

// A time may be read that cannot be written: it is left out, and what removes too much
// beside it has a name that confirms it.
func TestATimeThatCannotBeWrittenIsLeftOutAlone(t *testing.T) {
	for _, created := range []string{"2026-11-22T10:00:00+24:00", "0000-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"} {
		t.Run(created, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				share := fmt.Sprintf("shares: [{network: one, name: web, ports: [{port: 80}], identities: [%q], created: %s}]\n", who, created)
				many := strings.Replace(pods(0, 9, "one"), "workloads:", share+"workloads:", 1)
				few := strings.Replace(pods(0, 3, "one"), "workloads:", share+"workloads:", 1)
				w := watchFor(t, "zero", pods(0, 9, "one"))
				w.after(5 * time.Second)
				w.write(many)
				w.after(5 * time.Second)
				w.want("p8", 2)
				if s := w.store.Current(); s.Service("web.default.mesh.internal") == nil {
					t.Error("the share is out with its time")
				}
				p := w.Status().Problems
				if odd := created[:4] == "2026"; odd != (len(p) == 1) || odd && (p[0].Field != "shares[0].created" || p[0].Value != created || p[0].Out || !strings.Contains(p[0].Message, "2026-11-22T10:00:00Z")) {
					t.Errorf("problems %+v", p)
				}
				w.write(few)
				w.after(5 * time.Second)
				id := w.Status().Held
				if id == "" {
					t.Fatal("nothing is held")
				}
				w.write(few + "confirm: \"" + id + "\"\n")
				w.after(5 * time.Second)
				if s := w.Status(); s.Held != "" || s.Failing || w.store.Current().NumWorkloads() != 4 {
					t.Errorf("status %+v; want what was confirmed", s)
				}
			})
		})
	}
}

func TestATimeThatIsNoneIsToldWithTheRemedy(t *testing.T) {
	_, err := Parse("mesh.yaml", []byte("networks: [{name: west}]\nshares:\n  - {network: west, name: hello, created: yesterday}\n"), 1)
	const want = `mesh.yaml:3: shares[0].created: "yesterday": want a time as RFC 3339 writes it, such as 2026-11-22T10:00:00Z`
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "parsing") {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A problem is a sentence, and of what is not there nothing is quoted.
func TestAProblemIsASentence(t *testing.T) {
	for want, p := range map[string]Problem{
		`line 3: of policy "demo/x" a field is not used: policies[0].spec.mtsl: is not a key here: write mtls`: {Source: "file", Object: `policy "demo/x"`, Line: 3, Field: "policies[0].spec.mtsl", Message: "is not a key here: write mtls"},
		`line 4: workload "w" is left out: workloads[0].addresses[0] "odd": is no address`:                     {Source: "file", Object: `workload "w"`, Out: true, Line: 4, Field: "workloads[0].addresses[0]", Value: "odd", Message: "is no address"},
	} {
		if got := p.sentence(); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}
