package policy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// tree is an object as a decoder gives it.
type tree = map[string]any

// world draws objects, workloads and connections from so few words that they meet.
type world struct{ *rand.Rand }

const rootOfTests = "root"

var (
	namespacesOfTests = []string{rootOfTests, "demo", "demo-2"}
	accountsOfTests   = []string{"web", "web-2", "batch"}
	domainsOfTests    = []string{"cluster.local", "other.example", "own.example"}
	addressesOfTests  = []string{"10.0.0.1", "10.0.1.1", "192.168.0.1", "fd00::1"}
	rangesOfTests     = []string{"10.0.0.0/24", "10.0.0.0/8", "10.0.1.1", "0.0.0.0/0", "::/0", "fd00::1/128", "::ffff:10.0.0.0/104"}
)

func one[T any](w world, list []T) T { return list[w.IntN(len(list))] }

func some[T any](w world, draw func() T) (out []any) {
	for range 1 + w.IntN(2) {
		out = append(out, draw())
	}
	return out
}

func (w world) wildcard(s string) string {
	switch w.IntN(5) {
	case 0:
		return "*"
	case 1:
		return "*" + s[w.IntN(len(s)):]
	case 2:
		return s[:w.IntN(len(s))] + "*"
	}
	return s
}

func (w world) principal() string {
	return w.wildcard(fmt.Sprintf("%s/ns/%s/sa/%s", one(w, domainsOfTests), one(w, namespacesOfTests), one(w, accountsOfTests)))
}

func (w world) namespace() string { return w.wildcard(one(w, namespacesOfTests)) }
func (w world) portText() string  { return strconv.Itoa(80 + w.IntN(3)) }
func (w world) block() string     { return one(w, rangesOfTests) }

func (w world) account() string {
	if w.IntN(2) == 0 {
		return one(w, accountsOfTests)
	}
	return one(w, namespacesOfTests) + "/" + one(w, accountsOfTests)
}

// group draws some of the fields, at least one.
func (w world) group(fields map[string]func() string) tree {
	keys := slices.Sorted(func(yield func(string) bool) {
		for k := range fields {
			if !yield(k) {
				return
			}
		}
	})
	out := tree{}
	for len(out) == 0 || w.IntN(3) == 0 {
		k := one(w, keys)
		out[k] = some(w, fields[k])
	}
	return out
}

func (w world) rule() tree {
	r := tree{}
	if w.IntN(3) > 0 {
		r["from"] = some(w, func() tree {
			return tree{"source": w.group(map[string]func() string{"principals": w.principal, "notPrincipals": w.principal, "namespaces": w.namespace, "notNamespaces": w.namespace,
				"serviceAccounts": w.account, "notServiceAccounts": w.account, "ipBlocks": w.block, "notIpBlocks": w.block})}
		})
	}
	if w.IntN(3) == 0 {
		r["to"] = some(w, func() tree {
			return tree{"operation": w.group(map[string]func() string{"ports": w.portText, "notPorts": w.portText})}
		})
	}
	if w.IntN(3) == 0 {
		r["when"] = some(w, func() tree {
			keys := map[string]func() string{"source.ip": w.block, "source.namespace": w.namespace, "source.principal": w.principal, "destination.ip": w.block, "destination.port": w.portText}
			key := one(w, []string{"source.ip", "source.namespace", "source.principal", "destination.ip", "destination.port"})
			c := w.group(map[string]func() string{"values": keys[key], "notValues": keys[key]})
			c["key"] = key
			return c
		})
	}
	return r
}

func (w world) labels() tree {
	out := tree{}
	for _, k := range []string{"app", "tier"} {
		if w.IntN(2) == 0 {
			out[k] = one(w, []string{"a", "b"})
		}
	}
	return out
}

func (w world) mode() string { return one(w, []string{"UNSET", "DISABLE", "PERMISSIVE", "STRICT"}) }

// object draws the n-th object.
func (w world) object(n int) tree {
	spec := tree{}
	if w.IntN(3) == 0 {
		spec["selector"] = tree{"matchLabels": w.labels()}
	}
	metadata := tree{"name": fmt.Sprintf("p%d", n), "namespace": one(w, namespacesOfTests), "creationTimestamp": fmt.Sprintf("2026-01-01T00:00:%02dZ", w.IntN(3))}
	out := tree{"apiVersion": "security.istio.io/v1", "metadata": metadata, "spec": spec}
	if w.IntN(3) == 0 {
		out["kind"] = KindPeerAuthentication
		if w.IntN(3) > 0 {
			spec["mtls"] = tree{"mode": w.mode()}
		}
		if w.IntN(2) == 0 {
			spec["portLevelMtls"] = tree{w.portText(): tree{"mode": w.mode()}}
		}
		return out
	}
	out["kind"] = KindAuthorization
	switch w.IntN(5) {
	case 0, 1:
		spec["action"] = "DENY"
	case 2:
		spec["action"] = "ALLOW"
	}
	if w.IntN(6) == 0 {
		metadata["annotations"] = tree{dryRun: "true"}
	}
	var rules []any
	for range w.IntN(4) {
		rules = append(rules, w.rule())
	}
	spec["rules"] = rules
	return out
}

func (w world) objects() (out []tree) {
	for n := range w.IntN(6) {
		out = append(out, w.object(n))
	}
	return out
}

func (w world) workload() Workload {
	labels := map[string]string{}
	for k, v := range w.labels() {
		labels[k] = v.(string)
	}
	return Workload{Namespace: one(w, namespacesOfTests), Labels: labels}
}

func (w world) connection() Connection {
	c := Connection{From: netip.MustParseAddr(one(w, addressesOfTests)), Destination: netip.AddrPortFrom(netip.MustParseAddr(one(w, addressesOfTests)), uint16(80+w.IntN(4)))}
	if w.IntN(4) > 0 {
		c.Source = spiffeid.RequireFromString(fmt.Sprintf("spiffe://%s/ns/%s/sa/%s", one(w, domainsOfTests), one(w, namespacesOfTests), one(w, accountsOfTests)))
	}
	return c
}

func setOf(t testing.TB, objects []tree) *Set { return setIn(t, "cluster.local", objects) }

// setIn is objects in a mesh of the trust domain own.
func setIn(t testing.TB, own string, objects []tree) *Set {
	t.Helper()
	var list []Object
	for _, o := range objects {
		p, _ := ParseIn(own, o)
		if p != nil {
			list = append(list, p)
		}
	}
	return NewSet(rootOfTests, list)
}

// model decides by the text of the objects alone, in the words of Istio's documentation, and
// returns whether c may be and who says so.
type model struct {
	own     string // trust domain of the mesh
	objects []tree
	w       Workload
	c       Connection
}

func at(t any, path ...string) any {
	for _, p := range path {
		m, _ := t.(tree)
		t = m[p]
	}
	return t
}

func word(t any, path ...string) string { s, _ := at(t, path...).(string); return s }
func items(t any, key string) []any     { l, _ := at(t, key).([]any); return l }

func (m model) id() (domain, namespace, account string) {
	if m.c.Source.IsZero() {
		return "", "", ""
	}
	parts := strings.Split(m.c.Source.String()[len("spiffe://"):], "/")
	return parts[0], parts[2], parts[4]
}

// applies: in its own namespace, or anywhere if it is in the root namespace.
func (m model) applies(o tree) bool {
	ns := word(o, "metadata", "namespace")
	labels, _ := at(o, "spec", "selector", "matchLabels").(tree)
	for k, v := range labels {
		if m.w.Labels[k] != v {
			return false
		}
	}
	return ns == rootOfTests || ns == m.w.Namespace
}

func (m model) decide() (allowed bool, by []string) {
	if m.c.Source.IsZero() {
		if who := m.strict(); who != "" {
			return false, []string{who}
		}
	}
	var allows []string
	for _, action := range []string{"DENY", "ALLOW"} {
		for _, o := range m.objects {
			if o["kind"] != KindAuthorization || (word(o, "spec", "action") == "DENY") != (action == "DENY") || word(o, "metadata", "annotations", dryRun) == "true" || !m.applies(o) {
				continue
			}
			name := word(o, "metadata", "namespace") + "/" + word(o, "metadata", "name")
			if action == "ALLOW" {
				allows = append(allows, name)
			}
			for _, r := range items(o["spec"], "rules") {
				if m.rule(r, word(o, "metadata", "namespace")) {
					by = append(by, name)
					break
				}
			}
		}
		if len(by) > 0 {
			return action == "ALLOW", by
		}
	}
	return len(allows) == 0, allows
}

// strict returns whose mode STRICT holds: that of the port, of the workload, of the namespace, of
// the mesh, the first that is set.
func (m model) strict() string {
	oldest := func(ns string, selects bool) (found tree) {
		for _, o := range m.objects {
			labels, _ := at(o, "spec", "selector", "matchLabels").(tree)
			if o["kind"] != KindPeerAuthentication || word(o, "metadata", "namespace") != ns || (len(labels) > 0) != selects || !m.applies(o) {
				continue
			}
			age := func(o tree) string { return word(o, "metadata", "creationTimestamp") + word(o, "metadata", "name") }
			if found == nil || age(o) < age(found) {
				found = o
			}
		}
		return found
	}
	mode, by := "", ""
	set := func(o tree, to any) {
		if s, _ := to.(string); o != nil && mode == "" && s != "" && s != "UNSET" {
			mode, by = s, word(o, "metadata", "namespace")+"/"+word(o, "metadata", "name")
		}
	}
	if m.w.Namespace != rootOfTests {
		own := oldest(m.w.Namespace, true)
		set(own, at(own, "spec", "portLevelMtls", strconv.Itoa(int(m.c.Destination.Port())), "mode"))
		set(own, at(own, "spec", "mtls", "mode"))
		ns := oldest(m.w.Namespace, false)
		set(ns, at(ns, "spec", "mtls", "mode"))
	}
	all := oldest(rootOfTests, false)
	set(all, at(all, "spec", "mtls", "mode"))
	if mode == "STRICT" {
		return by
	}
	return ""
}

func (m model) rule(r any, home string) bool {
	from, to := items(r, "from"), items(r, "to")
	ok := len(from) == 0 || slices.ContainsFunc(from, func(f any) bool { return m.all(at(f, "source"), home) })
	ok = ok && (len(to) == 0 || slices.ContainsFunc(to, func(o any) bool { return m.all(at(o, "operation"), home) }))
	for _, w := range items(r, "when") {
		key := word(w, "key")
		ok = ok && (items(w, "values") == nil || m.any(key, items(w, "values"), home)) && !m.any(key, items(w, "notValues"), home)
	}
	return ok
}

// all reports whether every field of a source or operation holds.
func (m model) all(fields any, home string) bool {
	for key, list := range fields.(tree) {
		positive, not := key, false
		if rest, is := strings.CutPrefix(key, "not"); is {
			positive, not = strings.ToLower(rest[:1])+rest[1:], true
		}
		if m.any(positive, list.([]any), home) == not {
			return false
		}
	}
	return true
}

// any reports whether one of the values is what the connection has.
func (m model) any(key string, list []any, home string) bool {
	domain, ns, sa := m.id()
	for _, v := range list {
		v := v.(string)
		is := false
		switch key {
		case "principals", "source.principal":
			if parts := strings.Split(v, "/"); len(parts) > 1 && parts[0] == "cluster.local" { // a pointer to the trust domain of the mesh
				parts[0] = m.own
				v = strings.Join(parts, "/")
			}
			is = domain != "" && like(v, domain+"/ns/"+ns+"/sa/"+sa)
		case "namespaces", "source.namespace":
			is = domain != "" && like(v, ns)
		case "serviceAccounts":
			if !strings.Contains(v, "/") {
				v = home + "/" + v
			}
			is = domain != "" && v == ns+"/"+sa
		case "ipBlocks", "source.ip":
			is = within(v, m.c.From)
		case "destination.ip":
			is = within(v, m.c.Destination.Addr())
		case "ports", "destination.port":
			is = v == strconv.Itoa(int(m.c.Destination.Port()))
		}
		if is {
			return true
		}
	}
	return false
}

func like(pattern, s string) bool {
	switch {
	case pattern == "*":
		return s != ""
	case pattern[:1] == "*":
		return strings.HasSuffix(s, pattern[1:])
	case pattern[len(pattern)-1:] == "*":
		return strings.HasPrefix(s, pattern[:len(pattern)-1])
	}
	return pattern == s
}

// within compares bit by bit.
func within(block string, a netip.Addr) bool {
	text, length, ranged := strings.Cut(block, "/")
	b := netip.MustParseAddr(text)
	n, _ := strconv.Atoi(length)
	if !ranged {
		n = b.BitLen()
	}
	if b.Is4In6() {
		b, n = b.Unmap(), n-96
	}
	if b.Is4() != a.Is4() {
		return false
	}
	x, y := b.AsSlice(), a.AsSlice()
	for i := range n {
		if x[i/8]>>(7-i%8)&1 != y[i/8]>>(7-i%8)&1 {
			return false
		}
	}
	return true
}

func show(v any) string { b, _ := json.Marshal(v); return string(b) }

// each runs check with random worlds.
func each(t *testing.T, runs int, check func(t *testing.T, w world)) {
	seed := rand.Uint64()
	for i := range runs {
		check(t, world{rand.New(rand.NewPCG(seed, uint64(i)))})
		if t.Failed() {
			t.Fatalf("seed %d, run %d", seed, i)
		}
	}
}

func TestSetDecidesAsTheModelDoes(t *testing.T) {
	verdicts := map[Verdict]int{}
	each(t, 6_000, func(t *testing.T, w world) {
		objects, workload, c, own := w.objects(), w.workload(), w.connection(), one(w, domainsOfTests)
		for _, o := range objects {
			if _, problems := ParseIn(own, o); slices.ContainsFunc(problems, func(p Problem) bool { return p.Cause != Unsupported }) {
				t.Errorf("%s: %v", show(o), problems)
			}
		}
		got := setIn(t, own, objects).For(workload).Decide(c)
		verdicts[got.Verdict]++
		want, by := model{own, objects, workload, c}.decide()
		if got.Allowed() != want {
			t.Errorf("in %s %+v to %+v under %s: %s, the model says allowed = %v by %v", own, c, workload, show(objects), got, want, by)
		}
		if named := got.Policy.Namespace + "/" + got.Policy.Name; got.Policy != (Name{}) && !slices.Contains(by, named) {
			t.Errorf("in %s %+v to %+v under %s: %s, the model says %v", own, c, workload, show(objects), got, by)
		}
		if (got.Verdict == NotAllowed) != (!want && got.Policy == Name{}) || len(got.Among) > 0 && len(got.Among) != len(by) {
			t.Errorf("%s names %d policies, the model %v", got, len(got.Among), by)
		}
	})
	for v := NoPolicy; v <= PlainText; v++ {
		if verdicts[v] < 20 {
			t.Errorf("verdict %d came %d times: the test proves nothing about it", v, verdicts[v])
		}
	}
}
