//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// spec is what a node is told, as JSON.
type spec struct {
	Name     string
	Dir      string     // has what the node writes: lib is its /var/lib, log its /var/log
	Setup    [][]string // commands, one after another, before the programs
	Programs []program
}

// program is one that runs as long as the node does.
type program struct {
	Name string // of its log, in the directory log
	Args []string
}

// restartDelay is how long a program that has ended stays away.
const restartDelay = 500 * time.Millisecond

// node makes the file systems of a node, and runs its programs. It is the first process of
// namespaces for mounts, processes, names and IPC: when it is killed, the kernel ends all
// that is in them, whoever started it, and takes all mounts away.
func node(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var s spec
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if os.Getpid() != 1 {
		return errors.New("node is not the first process of a namespace: it would mount over what is yours")
	}
	if err := s.mounts(); err != nil {
		return err
	}
	for _, args := range s.Setup {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	running := map[int]program{}
	for _, p := range s.Programs {
		if err := s.start(p, running); err != nil {
			return err
		}
	}
	for { // processes of containers whose shim has ended come here too
		pid, err := syscall.Wait4(-1, nil, 0, nil)
		if err == syscall.EINTR {
			continue
		} else if err != nil {
			return err
		}
		if p, mine := running[pid]; mine {
			delete(running, pid)
			time.Sleep(restartDelay)
			if err := s.start(p, running); err != nil {
				return err
			}
		}
	}
}

// start runs a program, whose log goes on where it was.
func (s *spec) start(p program, running map[int]program) error {
	log, err := os.OpenFile(filepath.Join(s.Dir, "log", p.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	process, err := os.StartProcess(p.Args[0], p.Args, &os.ProcAttr{Dir: s.Dir, Env: os.Environ(), Files: []*os.File{nil, log, log}})
	if err != nil {
		return err
	}
	running[process.Pid] = p
	return process.Release()
}

// sysctls are settings of the whole machine that a kubelet insists on. It is shown files
// that have them, and the machine keeps its own.
var sysctls = map[string]string{"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}

// mounts makes what a node has for itself. Nothing of it is seen outside.
func (s *spec) mounts() error {
	for _, propagation := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} { // apart from the machine; shared with containers
		if err := unix.Mount("", "/", "", unix.MS_REC|propagation, ""); err != nil {
			return fmt.Errorf("set the propagation of mounts: %w", err)
		}
	}
	if err := errors.Join(unix.Mount("proc", "/proc", "proc", 0, ""), unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"), unix.Sethostname([]byte(s.Name))); err != nil {
		return fmt.Errorf("make the node's /proc and /run: %w", err)
	}
	for _, name := range []string{"lib", "log"} {
		from := filepath.Join(s.Dir, name)
		if err := errors.Join(os.MkdirAll(from, 0o755), bind(from, "/var/"+name)); err != nil {
			return err
		}
	}
	for name, value := range sysctls {
		file := "/run/sysctl." + strings.ReplaceAll(name, "/", ".")
		if err := errors.Join(os.WriteFile(file, []byte(value+"\n"), 0o644), bind(file, "/proc/sys/"+name)); err != nil {
			return err
		}
	}
	return nil
}

func bind(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", from, to, err)
	}
	return nil
}
