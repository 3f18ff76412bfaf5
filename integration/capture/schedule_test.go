//go:build linux

package capture

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// Whatever order node proxies of a node follow each other in, with what scopes and ends, and whatever pods and others in
// them do meanwhile: nothing that the mesh carries leaves a pod in plain text, what is open ends with its process alone,
// rules are those of a fresh start as soon as things have settled, and nothing is left at the end. SEEDS is how many
// schedules are tried, SEED the first of them.
func TestScopesUnderRandomSchedules(t *testing.T) {
	needsNft(t)
	t.Parallel()
	seeds, first := number(t, "SEEDS", 2), number(t, "SEED", 6) // these two found faults
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprint("seed-", seed), func(t *testing.T) {
			t.Parallel()
			s := newSchedule(t, seed)
			for range 10 {
				s.step()
				if t.Failed() {
					t.Fatalf("seed %d: %s", seed, strings.Join(s.story, ", "))
				}
			}
			s.finish()
			if t.Failed() {
				t.Fatalf("seed %d: %s", seed, strings.Join(s.story, ", "))
			}
		})
	}
}

func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	must(t, err)
	return n
}

// schedule is the model: which node proxies there are on node-a, and what must hold of the pods there.
type schedule struct {
	*world
	t      *testing.T
	rng    *rand.Rand
	story  []string
	next   int
	alive  []*generation // that take connections, the oldest first
	going  []*generation // that were told to stop
	left   bool          // shop-1 is not in the mesh
	torn   bool          // what was open there then may never end: nobody has set the rules again that it needs
	open   []held
	fresh  map[string]string // the rules of a fresh start, by scope and pod
	strays func() []string
	beside bool // rules of somebody else are in the pods
}

// generation is a node proxy.
type generation struct {
	*netspace.Process
	scope string
}

// held is a connection that is open.
type held struct {
	net.Conn
	from, to string
	by       *generation // that carries it; nil: none does
}

// kind is a way to connect.
type kind struct {
	from, to string
	vips     bool // captured by scope vips too
	of       []string
}

// kinds are those that are open: of names of pods, those whose capture decides.
var kinds = []kind{
	{"shop-1", hello + ":80", true, []string{"shop-1"}},
	{"shop-2", "[" + hello6 + "]:80", true, []string{"shop-2"}},
	{"shop-1", addresses["gateway"] + ":8080", false, []string{"shop-1"}},
	{"gateway", addresses["shop-1"] + ":8080", false, []string{"shop-1"}},
	{"gateway", v6(addresses["shop-2"]) + ":8080", false, []string{"shop-2"}},
	{"shop-1", addresses["shop-2"] + ":8080", false, []string{"shop-1", "shop-2"}},
	{"shop-2", addresses["shop-1"] + ":8080", false, []string{"shop-1", "shop-2"}},
}

func newSchedule(t *testing.T, seed uint64) *schedule {
	s := &schedule{world: newWorld(t), t: t, rng: rand.New(rand.NewPCG(seed, 1)), fresh: map[string]string{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d: %s", seed, strings.Join(s.story, ", "))
		}
	})
	s.write(t, "mesh.yaml", policed)
	s.serve(t, "gateway")
	s.strays = s.world.strays(t, "gateway", hello+":80", "["+hello6+"]:80")
	must(t, s.nodes["node-a"].Stop(syscall.SIGTERM, 10*time.Second))
	s.release()
	for _, pod := range ours {
		s.theirRule(pod)
		must(t, s.IP(pod, "rule add pref 32762 fwmark 0x7000/0x7000 lookup 4242"))
	}
	s.beside = true
	for _, scope := range []string{"all", "vips"} {
		s.begin(scope)
		for _, pod := range ours {
			s.fresh[scope+pod] = s.rules(pod)
			if strings.Count(s.fresh[scope+pod], "redirect to :15001") < 4 {
				t.Fatalf("with scope %s no rules are in %s:\n%s", scope, pod, s.fresh[scope+pod])
			}
		}
		s.release()
	}
	s.begin([]string{"all", "vips"}[s.rng.IntN(2)])
	s.settle()
	s.connect()
	return s
}

// ours are the pods of node-a.
var ours = []string{"shop-1", "shop-2"}

// step has one thing happen, and looks at all invariants.
func (s *schedule) step() {
	s.t.Helper()
	before := len(s.strays())
	switch n := s.rng.IntN(12); {
	case n < 5:
		s.follow()
	case n < 6:
		s.say("ends all but the youngest")
		s.calling(true, func() { s.drain(s.alive[:len(s.alive)-1]...) })
	case n < 8:
		s.kill()
	case n < 10:
		s.comeOrGo()
		before = len(s.strays())
	case n < 11:
		s.flush()
		before = len(s.strays())
	default:
		s.release()
		s.begin([]string{"all", "vips"}[s.rng.IntN(2)])
		before = len(s.strays())
	}
	s.settle()
	s.goOn()
	s.hangUp()
	if got := s.strays(); len(got) > before {
		s.t.Errorf("in plain text to virtual addresses: %v", got[before:])
	}
	s.connect()
}

func (s *schedule) say(format string, args ...any) {
	s.story = append(s.story, fmt.Sprintf(format, args...))
}

// begin starts a node proxy, which takes all connections from now on.
func (s *schedule) begin(scope string) {
	s.t.Helper()
	s.next++
	s.say("begins %d with scope %s", s.next, scope)
	at, name := fmt.Sprintf("127.0.0.1:%d", 16010+s.next), fmt.Sprint("node-a-", s.next)
	s.write(s.t, name+".yaml", strings.Replace(s.config("node-a", at, scope), "drain: 2s", "drain: 60s", 1))
	g := &generation{s.process("node-a", name), scope}
	must(s.t, s.Start(g.Process, s.Ready("node-a", at)))
	s.alive = append(s.alive, g)
}

// follow has one more node proxy, and most of the time the ones before it end.
func (s *schedule) follow() {
	s.t.Helper()
	if len(s.alive) == 3 {
		s.drain(s.alive[0])
	}
	s.calling(true, func() {
		s.begin([]string{"all", "vips"}[s.rng.IntN(2)])
		if s.rng.IntN(3) > 0 {
			s.say("the ones before end")
			s.drain(s.alive[:len(s.alive)-1]...)
		}
	})
}

// drain tells node proxies to stop; what is open goes on.
func (s *schedule) drain(which ...*generation) {
	for _, g := range append([]*generation(nil), which...) {
		g.Signal(syscall.SIGTERM)
		s.going = append(s.going, g)
		s.forget(g)
	}
}

func (s *schedule) forget(g *generation) {
	var rest []*generation
	for _, o := range s.alive {
		if o != g {
			rest = append(rest, o)
		}
	}
	s.alive = rest
}

// end ends node proxies, and what they carry.
func (s *schedule) end(sig syscall.Signal, which ...*generation) {
	s.t.Helper()
	for _, g := range append([]*generation(nil), which...) {
		var rest []held
		for _, c := range s.open {
			if c.by == g {
				c.Close()
			} else {
				rest = append(rest, c)
			}
		}
		s.open = rest
		must(s.t, g.Stop(sig, 10*time.Second))
		s.forget(g)
	}
}

// kill kills the youngest, or an older one, to which no new connections come; while there is none nobody gets anywhere by
// the mesh.
func (s *schedule) kill() {
	s.t.Helper()
	if len(s.alive) > 1 && s.rng.IntN(2) == 0 {
		i := s.rng.IntN(len(s.alive) - 1)
		s.say("of %d the one at %d is killed, the oldest being at 0", len(s.alive), i)
		s.calling(true, func() { s.end(syscall.SIGKILL, s.alive[i]) })
		return
	}
	g := s.alive[len(s.alive)-1]
	s.say("the youngest is killed")
	s.calling(false, func() { s.end(syscall.SIGKILL, g) })
	if len(s.alive) > 0 {
		return
	}
	for _, k := range kinds {
		if !s.captured(k, g) {
			continue
		}
		if text, err := s.call(k.from, k.to); err == nil {
			s.t.Errorf("without a node proxy %s reaches %s: %q", k.from, k.to, text)
		}
	}
	s.begin([]string{"all", "vips"}[s.rng.IntN(2)])
}

// comeOrGo has shop-1 leave the mesh, or come back, whoever is there.
func (s *schedule) comeOrGo() {
	s.t.Helper()
	if s.rng.IntN(3) == 0 {
		s.say("ends all but the youngest while")
		defer s.drain(s.alive[:len(s.alive)-1]...)
	}
	text := policed
	if s.left = !s.left; s.left {
		s.say("shop-1 leaves")
		text = ""
		for line := range strings.Lines(policed) {
			if !strings.Contains(line, "uid: shop-1,") {
				text += line
			}
		}
	} else {
		s.say("shop-1 comes back")
	}
	s.write(s.t, "mesh.yaml", text)
}

// flush does what something in shop-1 may do; what is open and translated there is lost, and where nobody sets the rules again
// also what its application has open with others whose addresses it sees.
func (s *schedule) flush() {
	s.t.Helper()
	s.say("all rules of shop-1 are flushed")
	var rest []held
	for _, c := range s.open {
		if c.by != nil && (c.from == "shop-1" || !strings.Contains(c.to, "shop-2") && c.from != "shop-2" || s.left && strings.HasPrefix(c.to, addresses["shop-1"]+":")) {
			c.Close()
			continue
		}
		rest = append(rest, c)
	}
	s.open = rest
	s.torn = s.torn || s.left
	_, err := s.Nft("shop-1", "flush ruleset")
	must(s.t, err)
	s.theirRule("shop-1")
}

// theirRule sets a rule in a pod that is none of ours.
func (s *schedule) theirRule(pod string) {
	s.t.Helper()
	_, err := s.Nft(pod, "add table inet theirs; add chain inet theirs output { type filter hook output priority 0; }; add rule inet theirs output tcp dport 4242 reject")
	must(s.t, err)
}

// calling has pods call by the mesh while f runs. well: each call is answered; otherwise it may fail.
func (s *schedule) calling(well bool, f func()) {
	s.t.Helper()
	done := make(chan struct{})
	var wg sync.WaitGroup
	for _, call := range [][2]string{{"shop-1", hello + ":80"}, {"shop-2", "[" + hello6 + "]:80"}} {
		if s.left && call[0] == "shop-1" {
			continue
		}
		wg.Go(func() {
			for n := 0; ; n++ {
				if _, err := s.call(call[0], call[1]); err != nil && well {
					s.t.Errorf("%s, call %d: %s to %s: %v", s.story[len(s.story)-1], n, call[0], call[1], err)
					return
				}
				select {
				case <-done:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
	}
	f()
	close(done)
	wg.Wait()
}

// hangUp ends some of what is open: who drains may end then.
func (s *schedule) hangUp() {
	most := s.rng.IntN(3) // of three
	var rest []held
	for _, c := range s.open {
		if s.rng.IntN(3) < most {
			c.Close()
		} else {
			rest = append(rest, c)
		}
	}
	s.open = rest
}

// connect opens a few connections that stay.
func (s *schedule) connect() {
	s.t.Helper()
	young := s.alive[len(s.alive)-1]
	for _, i := range s.rng.Perm(len(kinds))[:4] {
		k := kinds[i]
		if k.vips && s.left && k.from == "shop-1" {
			continue
		}
		c, err := s.Dial(k.from, k.to)
		if err != nil {
			s.t.Errorf("%s to %s: %v", k.from, k.to, err)
			return
		}
		s.t.Cleanup(func() { c.Close() })
		hear(s.t, c)
		h := held{Conn: c, from: k.from, to: k.to}
		if s.captured(k, young) {
			h.by = young
		}
		s.open = append(s.open, h)
	}
}
