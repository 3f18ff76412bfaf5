package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
)

func clone(t tree) (out tree) {
	b, _ := json.Marshal(t)
	json.Unmarshal(b, &out)
	return out
}

// spoil puts something that is not understood, or that speaks of HTTP, somewhere into the spec of
// an object, in place of what may stand there, and returns where.
func (w world) spoil(o tree) string {
	group, path := o["spec"].(tree), "spec"
	for w.IntN(4) > 0 {
		var deeper []string
		for k, v := range group {
			switch v := v.(type) {
			case tree:
				if k != "matchLabels" { // whose keys are anybody's
					deeper = append(deeper, k)
				}
			case []any:
				for i, x := range v {
					if _, is := x.(tree); is {
						deeper = append(deeper, fmt.Sprint(k, " ", i))
					}
				}
			}
		}
		if len(deeper) == 0 {
			break
		}
		slices.Sort(deeper)
		next := one(w, deeper)
		path += "." + next
		if _, is := group[next].(tree); is {
			group = group[next].(tree)
			continue
		}
		var key string
		var i int
		fmt.Sscan(next, &key, &i)
		group = group[key].([]any)[i].(tree)
	}
	bad := map[string]any{"unknown": "x", "methods": []any{"GET"}, "requestPrincipals": []any{"*"}, "ipBlocks": []any{"10.0.0.0/99"}, "ports": []any{"http"}, "from": "x", "to": tree{}, "source": []any{}, "operation": nil,
		"rules": tree{}, "action": "ALOW", "matchLabels": []any{}, "selector": "x", "mode": "STRCT", "mtls": "STRICT", "portLevelMtls": tree{"http": tree{}}, "when": []any{tree{"key": "request.headers[a]", "values": []any{"b"}}}, "key": "x", "principals": []any{"spiffe://a/ns/b/sa/c"}}
	key := one(w, slices.Sorted(maps.Keys(bad)))
	if key == "operation" && group["operation"] == nil || group["key"] != nil && key != "key" && key != "unknown" {
		key = "unknown"
	}
	group[key] = bad[key]
	return path + "." + key
}

func TestWhatIsNotUnderstoodNeverAllowsMore(t *testing.T) {
	stricter := 0
	each(t, 6_000, func(t *testing.T, w world) {
		objects, workload, c := append(w.objects(), w.object(9)), w.workload(), w.connection()
		before := setOf(t, objects).For(workload).Decide(c)
		i := w.IntN(len(objects))
		bad := clone(objects[i])
		if bad["kind"] == KindAuthorization && bad["spec"].(tree)["rules"] == nil {
			bad["spec"].(tree)["rules"] = []any{}
		}
		where := w.spoil(bad)
		spoilt := append(slices.Clone(objects[:i]), append([]tree{bad}, objects[i+1:]...)...)
		_, problems := Parse(bad)
		after := setOf(t, spoilt).For(workload).Decide(c)
		if after.Allowed() && !before.Allowed() {
			t.Errorf("%s is put into %s: %+v to %+v: %s; before it was %s", where, show(objects[i]), c, workload, after, before)
		}
		if len(problems) == 0 {
			t.Errorf("%s is put into %s, and there is no problem", where, show(objects[i]))
		}
		if before.Allowed() && !after.Allowed() {
			stricter++
		}
	})
	if stricter < 50 {
		t.Errorf("what is not understood denied %d connections: the test proves nothing", stricter)
	}
}

func TestInvariants(t *testing.T) {
	each(t, 4_000, func(t *testing.T, w world) {
		objects, workload, c := w.objects(), w.workload(), w.connection()
		decide := func(list []tree) Decision { return setOf(t, list).For(workload).Decide(c) }
		was := decide(objects)

		shuffled := slices.Clone(objects)
		w.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if got := decide(shuffled); got.String() != was.String() {
			t.Errorf("in another order %s: %s, before %s", show(shuffled), got, was)
		}

		e, modeless := setOf(t, objects).For(workload), NewSet(rootOfTests, nil).For(workload)
		modeless.deny, modeless.allow, modeless.allows = e.deny, e.allow, e.allows
		if rules := e.StrictAs(); rules != nil {
			modeless.deny = append(slices.Clip(e.deny), &Authorization{Action: Deny, Rules: rules})
		}
		if got := modeless.Decide(c); got.Allowed() != was.Allowed() {
			t.Errorf("without modes, and with %+v: %s, before %s", e.StrictAs(), got, was)
		}

		more := w.object(9)
		if more["kind"] != KindAuthorization {
			return
		}
		delete(more["metadata"].(tree), "annotations")
		now := decide(append(slices.Clone(objects), more))
		switch deny := more["spec"].(tree)["action"] == "DENY"; {
		case deny && now.Allowed() && !was.Allowed():
			t.Errorf("the DENY policy %s allows: %s, before %s", show(more), now, was)
		case !deny && now.Allowed() && (was.Verdict == Denied || was.Verdict == PlainText):
			t.Errorf("the ALLOW policy %s allows what was denied: %s, before %s", show(more), now, was)
		}

		more["metadata"].(tree)["annotations"] = tree{dryRun: "true"}
		if got := decide(append(slices.Clone(objects), more)); got.String() != was.String() {
			t.Errorf("the dry run of %s decides: %s, before %s", show(more), got, was)
		}
		alone := setOf(t, []tree{more}).For(workload)
		delete(more["metadata"].(tree), "annotations")
		real := setOf(t, []tree{more}).For(workload).Decide(c)
		if would := alone.DryRun(c); (len(would) == 1) != (real.Verdict == Allowed || real.Verdict == Denied) || len(would) == 1 && would[0].String() != real.String() {
			t.Errorf("the dry run of %s says %v, alone it decides %s", show(more), would, real)
		}
	})
}

func TestAModeThatIsNotUnderstoodGoesFirst(t *testing.T) {
	older := readYAML(t, `{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: older, namespace: demo, creationTimestamp: "2025-01-01T00:00:00Z"}, spec: {mtls: {mode: PERMISSIVE}}}`)
	strict := readYAML(t, `{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: strict, namespace: demo, creationTimestamp: "2026-01-01T00:00:00Z"}, spec: {selector: {matchLabels: {app: [web]}}, mtls: {mode: STRICT}}}`)
	w := Workload{Namespace: "demo", Labels: map[string]string{"app": "web"}}
	if got := setOf(t, []tree{older, strict}).For(w).Decide(Connection{}); got.Allowed() {
		t.Errorf("plain text under STRICT with a selector that is not understood is %s", got)
	}
}
