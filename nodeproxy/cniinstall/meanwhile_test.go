//go:build linux

package cniinstall

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// beforeExchanges has f called before each exchange of two files, with how many there were.
func beforeExchanges(t *testing.T, f func(i int) error) {
	t.Helper()
	real, i := exchange, 0
	t.Cleanup(func() { exchange = real })
	exchange = func(a, b string) error {
		if i++; f != nil {
			if err := f(i - 1); err != nil {
				return err
			}
		}
		return real(a, b)
	}
}

// put writes a file as CNIs do: whole, under its name.
func (n *Node) put(t *testing.T, name, text string) {
	t.Helper()
	at := filepath.Join(n.ConfDir, "new")
	must(t, os.WriteFile(at, []byte(text), 0o600))
	must(t, os.Rename(at, filepath.Join(n.ConfDir, name)))
}

func mtu(i int) string { return strings.Replace(main, "1450", fmt.Sprint(i), 1) }

// has checks what is in a configuration and what files there are.
func (n *Node) has(t *testing.T, name, part string, types []string, files ...string) {
	t.Helper()
	if text := n.text(t, name); !strings.Contains(text, part) {
		t.Errorf("%s is not in %s:\n%s", part, name, text)
	}
	if got := n.types(t, name); !slices.Equal(got, types) {
		t.Errorf("%s calls %v, want %v", name, got, types)
	}
	if got := n.files(t); !slices.Equal(got, files) {
		t.Errorf("files %v, want %v", got, files)
	}
}

var (
	without = []string{"ptp", "portmap"}
	with    = []string{"ptp", "portmap", "isthmus-cni"}
)

// The node's CNI writes its configuration twice when it starts, the second time while the entry is put into the first.
func TestAConfigurationThatIsWrittenMeanwhileIsNotLost(t *testing.T) {
	for name, do := range map[string]struct {
		f     func(*Node) error
		types []string
	}{"install": {(*Node).configure, with}, "uninstall": {(*Node).unconfigure, without}} {
		n := newNode(t, map[string]string{"10-pods.conflist": main})
		if name == "uninstall" {
			must(t, n.configure())
		}
		beforeExchanges(t, func(i int) error {
			if i < 3 { // also between an exchange and the one that takes it back
				n.put(t, "10-pods.conflist", strings.Replace(mtu(1400+i), `"plugins":[`, `"plugins":[{"type":"isthmus-cni"},`, 1))
			}
			return nil
		})
		must(t, do.f(n))
		n.has(t, "10-pods.conflist", "1402", do.types, "10-pods.conflist")
	}
}

// Who writes in place has the file open: it waits for the exchange, and for its end.
func TestWhoWritesInPlaceMeanwhileIsNotLost(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conflist": main})
	path := filepath.Join(n.ConfDir, "10-pods.conflist")
	var writing sync.WaitGroup
	beforeExchanges(t, func(i int) error {
		if i > 0 {
			return nil
		}
		var st unix.Stat_t
		must(t, unix.Stat(path, &st))
		writing.Go(func() {
			if err := os.WriteFile(path, []byte(mtu(1400)), 0o600); err != nil {
				t.Error(err)
			}
		})
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			locks, err := os.ReadFile("/proc/locks")
			must(t, err)
			for l := range strings.Lines(string(locks)) {
				if strings.Contains(l, "BREAKING") && strings.Contains(l, fmt.Sprintf(":%d ", st.Ino)) {
					return nil
				}
			}
		}
		t.Error("nobody waits to write")
		return nil
	})
	must(t, n.configure())
	writing.Wait()
	must(t, n.configure())
	n.has(t, "10-pods.conflist", "1400", with, "10-pods.conflist")

	n.put(t, "10-pods.conflist", main)
	f, err := os.OpenFile(path, os.O_WRONLY, 0) // and somebody who has had it open before
	must(t, err)
	time.AfterFunc(50*time.Millisecond, func() {
		if _, err := f.WriteString(mtu(1401)); err != nil {
			t.Error(err)
		}
		f.Close()
	})
	must(t, n.configure())
	n.has(t, "10-pods.conflist", "1401", with, "10-pods.conflist")

	held, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	defer held.Close()
	if err := n.unconfigure(); err == nil || !strings.Contains(err.Error(), path+": somebody else is writing it, and has it open") {
		t.Errorf("while somebody has it open: %v", err)
	}
	n.has(t, "10-pods.conflist", "1401", with, "10-pods.conflist")
}

// A file system that cannot exchange two files: it is looked again just before the one is replaced.
func TestWhereFilesCannotBeExchanged(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conflist": main})
	beforeExchanges(t, func(i int) error {
		if i == 0 {
			n.put(t, "10-pods.conflist", mtu(1400))
		}
		return errors.ErrUnsupported
	})
	must(t, n.configure())
	n.has(t, "10-pods.conflist", "1400", with, "10-pods.conflist")
	must(t, n.unconfigure())
	n.has(t, "10-pods.conflist", "1400", without, "10-pods.conflist")
}

// The same for a configuration of a single plugin, and for the list that was made of it.
func TestASinglePluginThatIsWrittenMeanwhileIsNotLost(t *testing.T) {
	const single = `{"cniVersion":"1.0.0","name":"pods","type":"bridge","mtu":1450}`
	newer := strings.Replace(single, "1450", "1400", 1)
	path := func(n *Node) string { return filepath.Join(n.ConfDir, "10-pods.conf") }
	read := func(n *Node) *conf {
		c, err := open(path(n))
		must(t, err)
		t.Cleanup(c.close)
		return c
	}
	n := newNode(t, map[string]string{"10-pods.conf": single})
	c := read(n)
	n.put(t, "10-pods.conf", newer)
	if err := c.remove(); !errors.Is(err, errChanged) || n.text(t, "10-pods.conf") != newer {
		t.Errorf("remove: %v, %s", err, n.text(t, "10-pods.conf"))
	}
	if err := c.create(path(n), []byte(single)); !errors.Is(err, errChanged) || n.text(t, "10-pods.conf") != newer {
		t.Errorf("create: %v, %s", err, n.text(t, "10-pods.conf"))
	}
	must(t, n.configure())
	n.put(t, "10-pods.conf", single)
	beforeExchanges(t, func(i int) error {
		if i == 0 { // the list is ours still, and of the one before
			n.put(t, "10-pods.conf", newer)
		}
		return nil
	})
	must(t, n.configure())
	n.has(t, "10-pods.conflist", "1400", []string{"bridge", "isthmus-cni"}, "10-pods.conf.isthmus-saved", "10-pods.conflist")
	must(t, n.unconfigure())
	if got := n.files(t); !slices.Equal(got, []string{"10-pods.conf"}) || !strings.Contains(n.text(t, "10-pods.conf"), "1400") {
		t.Errorf("files %v, %s", got, n.text(t, "10-pods.conf"))
	}
}

// Who writes the list while the configuration of a single plugin takes its place again has the last word.
func TestAListThatIsWrittenMeanwhileStays(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conf": single})
	must(t, n.configure())
	f, err := os.OpenFile(filepath.Join(n.ConfDir, "10-pods.conflist"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	if err := n.unconfigure(); err == nil || !strings.Contains(err.Error(), "somebody else is writing it") {
		t.Errorf("while it is written: %v", err)
	}
	must(t, f.Truncate(0))
	_, err = f.WriteString(theirs)
	must(t, err)
	must(t, f.Close())
	must(t, n.unconfigure())
	n.has(t, "10-pods.conflist", `"new"`, []string{"bridge"}, "10-pods.conflist")
}

// Whenever a process is killed, the next one removes what it has left, and puts back what somebody wrote in that moment.
func TestWhatAKilledProcessHasLeftIsCleared(t *testing.T) {
	for name, c := range map[string]struct {
		left  func(n *Node, path string, was uint64) // what is there when it is killed
		wants string
	}{
		"it wrote":                 {func(n *Node, path string, _ uint64) { n.put(t, ".10-pods.conflist.isthmus-new", "{") }, "1450"},
		"it was about to exchange": {func(n *Node, path string, was uint64) { n.left(t, path, mtu(1), was) }, "1450"},
		"it had exchanged":         {func(n *Node, path string, was uint64) { must(t, exchange(n.left(t, path, mtu(1450), was), path)) }, "1450"},
		"it had exchanged what is newer": {func(n *Node, path string, was uint64) {
			temp := n.left(t, path, mtu(1), was)
			n.put(t, "10-pods.conflist", mtu(1400))
			must(t, exchange(temp, path))
		}, "1400"},
		"and something newer is there by now": {func(n *Node, path string, was uint64) {
			temp := n.left(t, path, mtu(1), was)
			n.put(t, "10-pods.conflist", mtu(1400))
			must(t, exchange(temp, path))
			n.put(t, "10-pods.conflist", mtu(1401))
		}, "1401"},
		"it had taken away what is newer": {func(n *Node, path string, was uint64) {
			n.put(t, "10-pods.conflist", mtu(1400))
			must(t, os.Rename(path, tempName(path, was, 0)))
		}, "1400"},
		"it had taken away, and something newer is there": {func(n *Node, path string, was uint64) {
			must(t, os.Rename(path, tempName(path, was, 0)))
			n.put(t, "10-pods.conflist", mtu(1400))
		}, "1400"},
	} {
		n := newNode(t, map[string]string{"10-pods.conflist": main})
		path := filepath.Join(n.ConfDir, "10-pods.conflist")
		f, err := os.Open(path) // as that process had
		must(t, err)
		defer f.Close()
		was, err := inode(path)
		must(t, err)
		c.left(n, path, was)
		names, err := n.configurations()
		must(t, err)
		if len(names) > 1 {
			t.Errorf("%s: runtimes take %v for configurations", name, names)
		}
		must(t, n.locked(n.configure))
		if got := n.files(t); !slices.Equal(got, []string{"10-pods.conflist"}) || !strings.Contains(n.text(t, "10-pods.conflist"), c.wants) {
			t.Errorf("%s: files %v, %s, want %s", name, got, n.text(t, "10-pods.conflist"), c.wants)
		}
	}
}

// left makes the file that replace has beside path.
func (n *Node) left(t *testing.T, path, text string, was uint64) string {
	t.Helper()
	n.put(t, "left", text)
	put, err := inode(filepath.Join(n.ConfDir, "left"))
	must(t, err)
	temp := tempName(path, was, put)
	must(t, os.Rename(filepath.Join(n.ConfDir, "left"), temp))
	return temp
}

// Two processes, as when one takes over from the other, and a CNI that writes all the time, by both ways: what it has written last
// is there in the end.
func TestNothingIsLostBetweenTwoProcessesAndTheCNI(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conflist": main})
	path := filepath.Join(n.ConfDir, "10-pods.conflist")
	for round := range 10 {
		stop := make(chan struct{})
		var running sync.WaitGroup
		for _, do := range []func() error{n.configure, n.unconfigure} {
			running.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						if err := n.locked(do); err != nil && !errors.Is(err, errUnused) && !errors.Is(err, errChanged) { // just being written
							t.Error(err)
						}
					}
				}
			})
		}
		last := 0
		for i := range 20 {
			last = 10000 + 100*round + i
			if i%2 == round%2 {
				n.put(t, "10-pods.conflist", mtu(last))
			} else {
				must(t, os.WriteFile(path, []byte(mtu(last)), 0o600))
			}
			time.Sleep(time.Duration(i%4) * time.Millisecond)
		}
		close(stop)
		running.Wait()
		must(t, n.locked(n.configure))
		n.has(t, "10-pods.conflist", fmt.Sprint(last), with, "10-pods.conflist")
		if t.Failed() {
			return
		}
	}
}

// While another process is at work it is waited for, and not for ever.
func TestAProcessThatHangsIsSaid(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conflist": main})
	must(t, n.locked(func() error {
		err := n.locked(n.configure)
		if err == nil || !strings.Contains(err.Error(), n.ConfDir+": another isthmus-cni has been at work there for 5s") {
			t.Errorf("it is said as %v", err)
		}
		return nil
	}))
	must(t, n.locked(n.configure))
}
