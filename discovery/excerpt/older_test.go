package excerpt

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/policy"
)

// etcd is what the cluster counts its policies by.
type etcd struct {
	version  uint64
	versions []uint64                             // after each entry of the log
	backups  []map[discovery.Key]discovery.Record // of policies, after each change of one
	at       []uint64                             // the version of each
	quiet    int                                  // changes of the world, when it was last quiet
	restored bool                                 // it has gone back
	newest   map[string]uint64                    // of each policy, the newest that has been in force at the node proxy
	dead     map[string]uint64                    // policies that the node proxy was told to be gone: at which version they were deleted
	deleted  map[string]uint64                    // the same of the cluster
	had      map[string]heldPolicy                // what was in force at last
}

// versioned returns c as an API server has it.
func versioned(c discovery.Change, version uint64) discovery.Change {
	if p, is := c.Record.(discovery.Policy); is {
		m := maps.Clone(p["metadata"].(map[string]any))
		m["resourceVersion"] = fmt.Sprint(version)
		p = maps.Clone(p)
		p["metadata"] = m
		c.Record = p
	}
	return c
}

func (w *world) sayPolicy(c discovery.Change) {
	if w.objects[c.Key] == nil && c.Record == nil {
		return
	}
	w.version++
	c = versioned(c, w.version)
	w.steps = append(w.steps, fmt.Sprintf("policy %s is %v at %d", c.Key, c.Record, w.version))
	w.say(c)
	if c.Record == nil {
		w.deleted[c.Key.Name] = w.version
	}
	w.backups, w.at = append(w.backups, w.policies()), append(w.at, w.version)
}

func (w *world) policies() map[discovery.Key]discovery.Record {
	out := maps.Clone(w.objects)
	maps.DeleteFunc(out, func(k discovery.Key, _ discovery.Record) bool { return k.Kind != discovery.KindPolicy })
	return out
}

// restoreBackup has the API server be as it was some changes ago, and count from there.
func (w *world) restoreBackup(pick func(int) int) {
	back := 1 + pick(4)
	if len(w.backups) <= back {
		return
	}
	i := len(w.backups) - 1 - back
	was := w.backups[i]
	w.version, w.restored = w.at[i], true
	w.steps = append(w.steps, fmt.Sprintf("restored to %d", w.version))
	for k := range w.policies() {
		if was[k] == nil {
			w.say(discovery.Change{Key: k})
		}
	}
	for k, r := range was {
		w.say(discovery.Change{Key: k, Record: r})
	}
	w.backups, w.at = w.backups[:i+1], w.at[:i+1]
}

// rootOf is what a gateway says of how far it knows policies; nothing if it does not know them all.
func (w *world) rootOf(g *replica) []discovery.Change {
	if !g.knows {
		return nil
	}
	return []discovery.Change{{Key: discovery.RootNamespaceKey(), Record: discovery.RootNamespace{Name: "root", Known: policy.Revisions{Authorizations: w.versions[g.heard-1]}}}}
}

// checkAge looks that no policy at the node proxy goes back in time: none is older than one that was in force, and
// none is back that was gone by the word of a gateway that knew of its deletion, and that would have told it.
func (w *world) checkAge() {
	before := w.had
	if w.had = maps.Clone(w.held.policies); w.restored {
		return
	}
	for name, p := range w.held.policies {
		if p.revision < max(w.newest[name], w.dead[name]) {
			w.t.Fatalf("%s is as of %d: it has been as of %d, and is deleted at %d\n%s", name, p.revision, w.newest[name], w.dead[name], w.story())
		}
		w.newest[name] = p.revision
	}
	for name, p := range before {
		at := w.deleted[name]
		if _, stays := w.held.policies[name]; stays || at < p.revision || w.held.known.Authorizations < at {
			continue
		}
		o, _ := policy.Parse(p.record)
		for uid, pod := range w.held.pods {
			_, doubted := w.held.doubted[thing{discovery.KindWorkload, uid}]
			if !doubted && pod.Node == modelNode && policy.NewSet("root", nil).Concerns(o, policy.Workload{Namespace: pod.Namespace, Labels: pod.Labels}) {
				w.dead[name] = at
			}
		}
	}
}

// stepOfPolicies does something at random that concerns policies, of gateways of different lag.
func (w *world) stepOfPolicies(pods int) {
	pick := func(n int) int { return w.r.IntN(n) }
	switch k := pick(20); {
	case k < 6:
		w.stepPolicy(pick)
	case k < 8:
		i := pick(pods)
		c := localPod(fmt.Sprintf("p%d", i), labelsOfTests[pick(3)])
		p := c.Record.(discovery.Workload)
		p.Namespace, p.Node, p.Addresses[0] = namespacesOfTests[i%3], []string{modelNode, modelNode, "n1"}[pick(3)], netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		c.Record = p
		if pick(4) == 0 {
			c.Record = nil
		}
		w.steps = append(w.steps, fmt.Sprintf("pod p%d is %+v", i, c.Record))
		w.say(c)
	case k < 12:
		i, n := pick(len(w.replicas)), pick(4)
		w.steps = append(w.steps, fmt.Sprintf("gateway %d hears %d", i, n))
		w.hear(w.replicas[i], n)
	case k < 14:
		i := pick(len(w.replicas))
		w.steps = append(w.steps, fmt.Sprintf("gateway %d leads", i))
		w.lead(w.replicas[i])
	case k < 15 && pick(3) == 0:
		i := pick(len(w.replicas))
		w.steps = append(w.steps, fmt.Sprintf("gateway %d restarts", i))
		w.restart(i)
	case k < 19:
		w.steps = append(w.steps, "told")
		w.tell(3)
		w.checkCurrent()
	default:
		w.now = w.now.Add(time.Duration(pick(6)) * time.Second)
		w.steps = append(w.steps, "time passes")
		before, led := maps.Clone(w.held.policies), w.now.Before(w.held.reigns.Add(LongDoubt))
		w.bring(w.held.Settle(w.now))
		for name, p := range before {
			if _, stays := w.held.policies[name]; !stays && led && w.held.tells && w.held.known.Authorizations < p.revision {
				w.t.Fatalf("%s as of %d is dropped as a gateway does not list it that has heard as far as %d\n%s", name, p.revision, w.held.known.Authorizations, w.story())
			}
		}
	}
}

// checkCurrent looks that a gateway that has heard everything is believed at once.
func (w *world) checkCurrent() {
	if w.leader == nil || !w.leader.knows || w.leader.heard < len(w.log) || len(w.pending) > 0 || w.restored {
		return
	}
	if w.pending = w.reader.Take(); len(w.pending) > 0 {
		return
	}
	for _, o := range w.leader.snap.Policies().Objects() {
		for _, p := range w.leader.snap.OnNode(modelNetwork, modelNode) {
			if is, held := w.held.policies[o.Name().String()]; w.leader.snap.Policies().Concerns(o, workloadOf(p)) && (!held || is.revision != o.Revised()) {
				w.t.Fatalf("%s is as of %d, and not in force as such: %+v, deleted %+v\n%s", o.Name(), o.Revised(), is, w.held.deleted[o.Name().String()], w.story())
			}
		}
	}
}

// Under random schedules of gateways of different lag no policy goes back at a node proxy, and one that is current is
// believed; also one that says less than before, as after its API server was restored, in the end.
func TestNoPolicyGoesBack(t *testing.T) {
	seeds := manySeeds
	if testing.Short() {
		seeds = min(seeds, 300)
	}
	for seed := range seeds {
		w := newWorld(t, uint64(seed))
		for range 3 {
			for range 80 {
				w.stepOfPolicies(6)
				w.checkBooks()
			}
			w.checkQuiet()
		}
	}
}

// A gateway that goes back itself, as its API server was restored, is believed at once.
func TestAGatewayThatGoesBackItselfIsBelieved(t *testing.T) {
	now := time.Unix(1e9, 0)
	v, _ := cluster(1)
	v.apply(localPod("w", nil), versioned(policyOf("shop", "x", "ALLOW", nil, 0), 700), rootOfTests)
	x := NewIndex(modelNetwork, v.snap)
	h, node := NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
	h.Lead("gw")
	r := x.Add(modelNode, nil, func() {})
	told(t, r, h, node, now)
	for i, c := range []struct {
		action string
		closed bool
	}{{"DENY", true}, {"", false}, {"DENY", true}} {
		next := policyOf("shop", "x", c.action, nil, 0)
		if c.action == "" {
			next.Record = nil
		}
		changes, _ := v.apply(versioned(next, uint64(9-i)), discovery.Change{Key: discovery.RootNamespaceKey(), Record: discovery.RootNamespace{Name: "root", Known: policy.Revisions{Authorizations: uint64(9 - i)}}})
		x.Revise(v.snap, changes)
		if told(t, r, h, node, now); closed(node.snap, "w") != c.closed || h.Status().Older != "" {
			t.Errorf("step %d: closed %v, %+v", i, !c.closed, h.Status())
		}
	}
}

// Whatever a gateway that is behind says, also after the node proxy has started again: what was changed stays changed,
// and what was deleted deleted, until it has caught up; and for so long that it must be right, if it does not.
func TestAGatewayThatIsBehindBringsNoOlderPolicyBack(t *testing.T) {
	for _, what := range []string{"changed", "deleted", "deleted without a word"} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprint(what, restart), func(t *testing.T) {
				now := time.Unix(1e9, 0)
				v, _ := cluster(1)
				known := func(version uint64) discovery.Change {
					return discovery.Change{Key: discovery.RootNamespaceKey(), Record: discovery.RootNamespace{Name: "root", Known: policy.Revisions{Authorizations: version}}}
				}
				before, after := "ALLOW", "DENY"
				if what != "changed" {
					before, after = "DENY", ""
				}
				v.apply(localPod("w", nil), versioned(policyOf("shop", "x", before, nil, 0), 7), known(7))
				behind := NewIndex(modelNetwork, v.snap)
				ahead := NewIndex(modelNetwork, v.snap)
				h, node := NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
				lead := func(x *Index) *Reader {
					h.Lead("gw")
					r := x.Add(modelNode, nil, func() {})
					told(t, r, h, node, now)
					return r
				}
				r := lead(ahead)
				next := policyOf("shop", "x", after, nil, 0)
				if after == "" {
					next.Record = nil
				}
				changes, _ := v.apply(versioned(next, 9), known(9))
				ahead.Revise(v.snap, changes)
				if what == "deleted without a word" {
					lead(ahead)
					now = now.Add(Doubt)
					node.apply(h.Settle(now)...)
				} else {
					told(t, r, h, node, now)
				}
				want := after == "DENY"
				if closed(node.snap, "w") != want {
					t.Fatalf("by the gateway that is ahead: closed %v", !want)
				}
				if restart {
					data, err := h.Save(now)
					if err != nil {
						t.Fatal(err)
					}
					h, node = NewHeld(modelNetwork, modelNode, "cluster.local"), newView()
					restored, _, _, err := h.Restore(data)
					if err != nil {
						t.Fatal(err)
					}
					node.apply(restored...)
				}
				lead(behind)
				now = now.Add(LongDoubt - time.Second)
				node.apply(h.Settle(now)...)
				if closed(node.snap, "w") != want || h.Status().Older == "" {
					t.Errorf("by one that is behind: closed %v, %+v", closed(node.snap, "w"), h.Status())
				}
				now = now.Add(time.Second)
				node.apply(h.Settle(now)...)
				if closed(node.snap, "w") == want || h.Status().Older != "" {
					t.Errorf("by one that says so for long, as after a backup was restored: closed %v, %+v", closed(node.snap, "w"), h.Status())
				}
				lead(ahead)
				now = now.Add(Doubt)
				node.apply(h.Settle(now)...)
				if closed(node.snap, "w") != want {
					t.Errorf("once more by the one that is ahead: closed %v", !want)
				}
			})
		}
	}
}
