//go:build linux

package netspace

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	east = "10.71.1.1"
	west = "10.71.1.2"
	far  = "10.71.2.1"
)

// open makes a space of two segments. As root it must work.
func open(t *testing.T) *Space {
	t.Helper()
	NeedRoot(t)
	s, err := two()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(s.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the directory %s is left: %v", s.Dir, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func two() (*Space, error) {
	s, err := New("netspace")
	if err == nil {
		err = s.Segment("near", map[string][]string{"east": {east}, "west": {west, "10.71.1.3"}})
	}
	if err == nil {
		err = s.Segment("far", map[string][]string{"far": {far}})
	}
	return s, err
}

// answer makes a host answer each connection with its name.
func answer(t *testing.T, s *Space, host, address string) {
	t.Helper()
	l, err := s.Listen(host, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, host)
			c.Close()
		}
	}()
}

func TestHostsOfASegmentReachEachOtherAndNobodyElse(t *testing.T) {
	s := open(t)
	for host, address := range map[string]string{"east": east + ":80", "west": west + ":80", "far": far + ":80"} {
		answer(t, s, host, address)
	}
	answer(t, s, "west", "10.71.1.3:81")
	for address, want := range map[string]string{east + ":80": "east", west + ":80": "west", "10.71.1.3:81": "west"} {
		c, err := s.Dial("east", address)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		c.Close()
		if string(got) != want {
			t.Errorf("at %s answers %q (%v), want %q", address, got, err, want)
		}
	}
	if c, err := s.Dial("east", far+":80"); err == nil {
		c.Close()
		t.Error("a host of another segment can be reached")
	}
	// Outside the same address may be somebody else.
	if c, err := net.DialTimeout("tcp", west+":80", time.Second); err == nil {
		c.SetDeadline(time.Now().Add(time.Second))
		if got, _ := io.ReadAll(c); string(got) == "west" {
			t.Error("a host can be reached from outside")
		}
		c.Close()
	}
	if _, err := s.Dial("nowhere", west+":80"); err == nil {
		t.Error("a host that does not exist dials")
	}
}

func TestThreadsComeBack(t *testing.T) {
	s := open(t)
	before, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if err := s.In("west", func() error {
			inside, err := net.Interfaces()
			if len(inside) != 2 {
				t.Errorf("inside are %v (%v), want lo and eth0", inside, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if after, err := net.Interfaces(); err != nil || len(after) != len(before) {
			t.Fatalf("outside are %v (%v), want %v", after, err, before)
		}
	}
}

func TestProcessRunsEndsAndRunsAgain(t *testing.T) {
	s := open(t)
	p := &Process{
		Host: "west", Log: filepath.Join(s.Dir, "shell.log"), Env: []string{"WORD=courage"},
		Args: []string{"sh", "-c", "echo $WORD; ip -4 -o addr show eth0; touch here; exec sleep 1000"},
	}
	ready := func() error { _, err := os.Stat(filepath.Join(s.Dir, "here")); return err }
	for range 2 {
		if err := s.Start(p, ready); err != nil {
			t.Fatal(err)
		}
		if log := Tail(p.Log); !strings.Contains(log, "courage") || !strings.Contains(log, west) {
			t.Errorf("the log is %q, want the variable and the host's address", log)
		}
		if err := p.Stop(syscall.SIGTERM, killTime); err != nil {
			t.Error(err)
		}
		if got := p.State().Sys().(syscall.WaitStatus).Signal(); got != syscall.SIGTERM {
			t.Errorf("the process ends by %v, want SIGTERM", got)
		}
		os.Remove(filepath.Join(s.Dir, "here"))
		os.Remove(p.Log)
	}
}

func TestProcessThatEndsAtOnceShowsItsLog(t *testing.T) {
	s := open(t)
	p := &Process{Host: "west", Log: filepath.Join(s.Dir, "log"), Args: []string{"sh", "-c", "echo no configuration; exit 3"}}
	err := s.Start(p, func() error { return errors.New("not yet") })
	if err == nil || !strings.Contains(err.Error(), "no configuration") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("Start says %v, want the exit status and the log", err)
	}
}

func TestProcessRunsHereWithoutRoot(t *testing.T) {
	s, err := New("netspace")
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(s.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the directory %s is left: %v", s.Dir, err)
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{Host: Here, Log: filepath.Join(s.Dir, "log"), Args: []string{"sleep", "1000"}}
	if err := s.Start(p, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PID(), 0); err != nil {
		t.Errorf("the process does not run: %v", err)
	}
}

// TestOwner is no test: it is the process that the next one kills.
func TestOwner(t *testing.T) {
	if os.Getenv("NETSPACE_OWNER") == "" {
		t.Skip("it is started by TestKilledOwnerLeavesNothing")
	}
	s, err := two()
	if err == nil {
		p := &Process{Host: "west", Log: filepath.Join(s.Dir, "log"), Args: []string{"sleep", "1000"}}
		err = s.Start(p, func() error { return nil })
		fmt.Printf("owner %s %s %d\n", s.prefix, s.Dir, p.PID())
	}
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Hour)
}

func TestKilledOwnerLeavesNothing(t *testing.T) {
	open(t) // skips without root
	owner := exec.Command(os.Args[0], "-test.run=^TestOwner$")
	owner.Env = append(os.Environ(), "NETSPACE_OWNER=yes")
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	var prefix, dir string
	var pid int
	if _, err := fmt.Fscanf(out, "owner %s %s %d\n", &prefix, &dir, &pid); err != nil {
		t.Fatal(err)
	}
	left := func() (all []string) {
		if list, _ := exec.Command("ip", "netns", "list").Output(); strings.Contains(string(list), prefix) {
			all = append(all, "namespaces "+prefix)
		}
		if _, err := os.Stat(dir); err == nil {
			all = append(all, "directory "+dir)
		}
		if syscall.Kill(pid, 0) == nil {
			all = append(all, fmt.Sprintf("process %d", pid))
		}
		return all
	}
	if got := left(); len(got) != 3 {
		t.Errorf("before it is killed there are %v, want namespaces, directory and process", got)
	}
	owner.Process.Kill()
	owner.Wait()
	for end := time.Now().Add(20 * time.Second); len(left()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("there are still %v", left())
		}
	}
}
