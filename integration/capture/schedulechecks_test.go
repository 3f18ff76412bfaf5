//go:build linux

package capture

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// captured reports whether g carries connections of a kind.
func (s *schedule) captured(k kind, g *generation) bool {
	if !k.vips && g.scope != "all" || k.from != "gateway" && strings.HasPrefix(k.to, addresses["gateway"]+":") { // or is left to the kernel
		return false
	}
	for _, pod := range k.of {
		if pod != "shop-1" || !s.left {
			return true
		}
	}
	return false
}

// goOn has all say something that are open.
func (s *schedule) goOn() {
	s.t.Helper()
	for _, c := range s.open {
		c.SetDeadline(time.Now().Add(3 * time.Second))
		_, err := c.Write([]byte("x"))
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		if err != nil {
			by := "nobody"
			if c.by != nil {
				by = c.by.Log
			}
			s.t.Errorf("%s to %s, carried by %s: %v", c.from, c.to, by, err)
		}
	}
}

// rules are those of ours in a pod that lead somewhere, with what belongs to them.
func (s *schedule) rules(pod string) string {
	s.t.Helper()
	text, err := s.ruleset(pod)
	must(s.t, err)
	var tables []string
	theirs := false
	for _, table := range strings.SplitAfter(text, "\n}\n") {
		switch name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(table), "table inet "), " "); {
		case name == "theirs":
			theirs = strings.Contains(table, "tcp dport 4242 reject")
		case strings.HasPrefix(name, "isthmus-names-"):
			if strings.Contains(table, "redirect to") { // or it is of one that stops
				tables = append(tables, sorted(strings.Replace(table, name, "isthmus-names", 1)))
			}
		case strings.HasPrefix(name, "isthmus-alive-"): // one of each process
		case name != "":
			tables = append(tables, sorted(table))
		}
	}
	var rule bool
	must(s.t, s.In(pod, func() error {
		out, err := exec.Command("ip", "rule", "list", "pref", "32762").Output()
		rule = strings.Contains(string(out), "fwmark 0x7000")
		return err
	}))
	if s.beside && !(theirs && rule) {
		s.t.Errorf("%s: rules of somebody else are gone: %s", pod, text)
	}
	slices.Sort(tables)
	tables = slices.Compact(tables) // each node proxy that answers names has one
	return strings.TrimSpace(strings.Join(tables, "") + s.routing(s.t, pod))
}

// sorted is a table with its lines in order: elements of sets, sets and chains have none.
func sorted(table string) string {
	head, rest, _ := strings.Cut(strings.TrimSpace(table), "\n")
	head, _, _ = strings.Cut(head, " #")
	lines := strings.Split(rest, "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, "\tset setter-") || strings.Contains(line, " expires ") // its end is as that of others; decisions
	})
	for i := range lines {
		lines[i] = ofProcess.ReplaceAllString(lines[i], "$1")
	}
	slices.Sort(lines)
	return head + "\n" + strings.Join(lines, "\n") + "\n"
}

// ofProcess matches what is another one in the rules of each process: names of sets of decisions, the group that first packets
// are logged to, and the digest of it all.
var ofProcess = regexp.MustCompile(`((?:direct|mesh|refused)[46]-|log group |comment "isthmus )[0-9a-f]+`)

// settle waits until the rules of all pods are those that the youngest node proxy would set at a fresh start.
func (s *schedule) settle() {
	s.t.Helper()
	young := s.alive[len(s.alive)-1]
	for _, pod := range ours {
		began := time.Now()
		for ; ; time.Sleep(20 * time.Millisecond) {
			got, want := s.rules(pod), s.fresh[young.scope+pod]
			if s.left && pod == "shop-1" {
				if strings.Count(got, "redirect to") <= 2 && !strings.Contains(got, "reject") && !strings.Contains(got, "elements") { // or of empty sets
					break
				}
			} else if got == want {
				break
			}
			if time.Since(began) > settleWithin {
				s.t.Errorf("after %v the rules of %s are\n%s\nwant those of scope %s:\n%s", settleWithin, pod, got, young.scope, want)
				return
			}
		}
	}
}

// settleWithin is long enough for two looks of a node proxy, on a busy machine.
const settleWithin = 4 * time.Second

// ends waits for a node proxy that was told to stop and carries nothing any more.
func (s *schedule) ends(g *generation) {
	s.t.Helper()
	if s.torn {
		must(s.t, g.Stop(syscall.SIGTERM, 20*time.Second)) // at once
		return
	}
	select {
	case <-g.Ended():
	case <-time.After(20 * time.Second):
		s.t.Errorf("%s carries nothing, and has not ended within 20 s", g.Log)
		must(s.t, g.Stop(syscall.SIGTERM, 20*time.Second))
	}
}

// release has all rules taken out, by a node proxy that overlaps with those that there are, and sees that nothing is left.
func (s *schedule) release() {
	s.t.Helper()
	s.next++
	at, name := fmt.Sprintf("127.0.0.1:%d", 16010+s.next), fmt.Sprint("node-a-", s.next)
	s.say("%d releases", s.next)
	s.write(s.t, name+".yaml", strings.Replace(s.config("node-a", at, "release"), "drain: 2s", "drain: 60s", 1))
	p := s.process("node-a", name)
	before := s.rng.IntN(2) == 0
	if before {
		s.drain(s.alive...)
	}
	must(s.t, s.Start(p, s.Ready("node-a", at)))
	s.drain(s.alive...)
	s.goOn()
	var rest []held
	for _, c := range s.open {
		if c.by == nil {
			rest = append(rest, c)
			continue
		}
		c.Close()
	}
	s.open = rest
	for _, g := range s.going {
		s.ends(g)
	}
	s.going, s.torn = nil, false
	must(s.t, p.Stop(syscall.SIGTERM, 10*time.Second))
	for _, pod := range ours {
		if left := s.rules(pod); left != "" {
			s.t.Errorf("released, and left in %s:\n%s", pod, left)
		}
		text, err := s.ruleset(pod)
		must(s.t, err)
		if strings.Contains(text, "isthmus") {
			s.t.Errorf("released, and left in %s:\n%s", pod, text)
		}
		must(s.t, s.In(pod, func() error {
			out, err := exec.Command("sh", "-c", "cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6").Output()
			for line := range strings.Lines(string(out)) {
				for _, port := range []int{15001, 15006, 15008, 15053} {
					if f := strings.Fields(line); strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && (f[3] == "0A" || f[3] == "07") {
						s.t.Errorf("released, and a socket listens in %s: %s", pod, line)
					}
				}
			}
			return err
		}))
	}
	s.goOn()
}

// finish ends all of it.
func (s *schedule) finish() {
	s.t.Helper()
	s.release()
	for _, k := range kinds {
		if k.vips {
			continue
		}
		if _, err := s.call(k.from, k.to); err != nil {
			s.t.Errorf("released, %s to %s: %v", k.from, k.to, err)
		}
	}
}
