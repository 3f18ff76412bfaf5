package controller

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/vip"
)

// Random schedules of two processes that both plan, as each leads or takes itself for the leader, of
// exports that come and go, of writes that are refused, and of watches that are cut off: no two
// imports ever have one address, and when all is well again there is what is exported, with addresses.
func TestTermsOfTwoLeaders(t *testing.T) {
	for seed := range uint64(2) {
		rng := rand.New(rand.NewPCG(seed, 9))
		one, a := newLeader(t, Config{VIPs: ranges}, "a", "b")
		two := leaderOf(t, a, Config{VIPs: ranges})
		leaders := []*leader{one, two}
		names := []vip.Name{}
		for i := range 12 {
			names = append(names, vip.Name{Namespace: string("ab"[i%2]), Name: fmt.Sprint("s", i)})
		}
		exported, bad := map[vip.Name]bool{}, map[string]bool{}
		a.refuse = func(verb, resource, namespace, name string) *refusal {
			switch {
			case bad["all"]:
				return &refusal{http.StatusServiceUnavailable, "ServiceUnavailable", "away"}
			case verb == "get":
			case bad[namespace]:
				return noRight(verb, resource)
			case bad[resource]:
				return &refusal{http.StatusForbidden, "Forbidden", "denied by quota"}
			case bad[name]:
				return &refusal{http.StatusInternalServerError, "InternalError", "failed calling webhook"}
			}
			return nil
		}
		set := func(n vip.Name) {
			for _, l := range leaders {
				if exported[n] {
					l.offer(n)
					continue
				}
				l.exports.mu.Lock()
				delete(l.exports.of, n)
				l.exports.mu.Unlock()
			}
		}
		check := func(step int) {
			a.mu.Lock()
			defer a.mu.Unlock()
			seen := map[string]string{}
			for k, o := range a.objects {
				if !strings.HasPrefix(k, "serviceimports/") {
					continue
				}
				ips, _ := o["spec"].(map[string]any)["ips"].([]any)
				for _, ip := range ips {
					if other, twice := seen[ip.(string)]; twice {
						t.Fatalf("seed %d, step %d: %v is of %s and of %s", seed, step, ip, k, other)
					}
					seen[ip.(string)] = k
				}
			}
		}
		for step := range 60 {
			n := names[rng.IntN(len(names))]
			what := []string{"all", "a", "b", "configmaps", "serviceimports", "s3", "s4"}[rng.IntN(7)]
			l := leaders[rng.IntN(2)]
			a.mu.Lock()
			switch rng.IntN(8) {
			case 0:
				bad[what] = !bad[what]
			case 1:
				clear(bad)
			case 2:
				a.cut()
			case 3: // another term of this process
				l.ledger, l.text, l.gates = nil, l.client.Text(ledgerName), newGates()
			case 4:
				if key := "serviceimports/" + n.String(); a.objects[key] != nil {
					a.remove(key)
				}
			default:
				exported[n] = !exported[n]
				set(n)
			}
			a.mu.Unlock()
			if rng.IntN(2) == 0 {
				time.Sleep(time.Duration(rng.IntN(3)) * time.Millisecond)
			}
			for _, g := range l.gates.of {
				if rng.IntN(2) == 0 {
					g.until = time.Time{}
				}
			}
			_ = l.plan(t.Context())
			check(step)
		}
		a.mu.Lock()
		clear(bad)
		a.mu.Unlock()
		one.ledger, one.text, one.gates = nil, one.client.Text(ledgerName), newGates()
		for until := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			clear(one.gates.of)
			err := one.plan(t.Context())
			check(1000)
			wrong := ""
			for _, n := range names {
				o := a.imported(n)
				if (o != nil) != exported[n] {
					wrong = fmt.Sprintf("%s is exported: %v, and imported: %v", n, exported[n], o != nil)
				} else if o != nil {
					if ips, _ := o["spec"].(map[string]any)["ips"].([]any); len(ips) == 0 {
						wrong = fmt.Sprintf("%s has no address", n)
					}
				}
			}
			if wrong == "" && err == nil {
				break
			}
			if time.Now().After(until) {
				t.Fatalf("seed %d: all is well, and %s, %v; problems %v", seed, wrong, err, one.problems)
			}
		}
	}
}
