//go:build linux

package podns

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Finder finds the network namespaces of pods by the control groups of their processes, as every
// container runtime of Kubernetes makes them: .../pod<uid>/..., or with systemd
// ...-pod<uid with _>.slice/... Not safe for concurrent use.
type Finder struct {
	Proc string // where the proc file system of the machine is, which lists the processes of all pods
}

// found is the oldest process of a pod so far.
type found struct {
	pid   string
	start uint64 // in clock ticks since the machine started
}

// Find looks for those of the wanted pods, by UID, that run. The caller owns what it returns. A
// process that ends meanwhile is left out, and so is a pod that shares the namespace of this
// process: nothing is ever done to that. An error means that processes cannot be listed, or
// that those of a pod cannot be looked into, which the others do not suffer from.
func (f *Finder) Find(wanted map[string]bool) (map[string]*Sandbox, error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	return f.find(func(uid string) bool { return wanted[uid] })
}

// All is Find for all pods of the machine.
func (f *Finder) All() (map[string]*Sandbox, error) {
	return f.find(func(uid string) bool { return uid != "" })
}

func (f *Finder) find(wanted func(uid string) bool) (map[string]*Sandbox, error) {
	dir, err := os.Open(f.Proc)
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return nil, err
	}
	oldest, err := oldestOf(names, wanted, func(path string, buf []byte) ([]byte, error) { return readInto(filepath.Join(f.Proc, path), buf) })
	if err != nil {
		return nil, err
	}
	home, err := Own()
	if err != nil {
		return nil, err
	}
	out := map[string]*Sandbox{}
	var errs []error
	for uid, o := range oldest {
		s, err := openSandbox(filepath.Join(f.Proc, o.pid), o.start)
		switch {
		case err == nil && s.Namespace.ID() == home:
			s.Close()
		case err == nil:
			out[uid] = s
		case !gone(err):
			errs = append(errs, fmt.Errorf("pod %s: %w", uid, err))
		}
	}
	return out, errors.Join(errs...)
}

// oldestOf finds the oldest process of each of the wanted pods, by UID, among all that proc lists as names, of which read reads
// a file. The oldest one is the pod's: younger ones may have made namespaces of their own, as a container of a container
// has. So if one cannot be read for want of descriptors, which may be any pod's, nothing is known of any.
func oldestOf(names []string, wanted func(uid string) bool, read func(path string, buf []byte) ([]byte, error)) (map[string]found, error) {
	oldest := map[string]found{}
	buf := make([]byte, 8192)
	for _, pid := range names {
		if pid[0] < '0' || pid[0] > '9' {
			continue
		}
		text, err := read(pid+"/cgroup", buf)
		uid := podOf(text)
		if err == nil && wanted(uid) {
			text, err = read(pid+"/stat", buf)
			if start, ok := startOf(text); ok && (oldest[uid].pid == "" || start < oldest[uid].start) {
				oldest[uid] = found{pid, start}
			}
		}
		if Lacking(err) {
			return nil, fmt.Errorf("look for pods: process %s: %w", pid, err)
		}
	}
	return oldest, nil
}

// gone reports that a process has ended.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

// readInto reads a small file of proc; of a process that has ended it has an error, or nothing.
func readInto(path string, buf []byte) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf)
	return buf[:max(n, 0)], err
}

// podOf returns the UID of the pod that a process belongs to, given its /proc/<pid>/cgroup; empty if
// it is of none. The outermost group counts: a container may make groups of any name in its own.
func podOf(cgroup []byte) string {
	for line := range bytes.Lines(cgroup) {
		parts := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(":"), 3)
		if len(parts) < 3 {
			continue
		}
		for group := range strings.SplitSeq(string(parts[2]), "/") {
			if uid, ok := podGroup(group); ok {
				return uid
			}
		}
	}
	return ""
}

// podGroup returns the UID of the pod whose control group has this name.
func podGroup(name string) (uid string, ok bool) {
	if slice, ok := strings.CutSuffix(name, ".slice"); ok { // kubepods-burstable-pod0a1b_….slice
		at := strings.LastIndex(slice, "-pod")
		if at < 0 {
			return "", false
		}
		uid = strings.ReplaceAll(slice[at+len("-pod"):], "_", "-")
	} else if uid, ok = strings.CutPrefix(name, "pod"); !ok {
		return "", false
	}
	for _, c := range []byte(uid) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && c != '-' { // UUIDs, and hashes of static pods
			return "", false
		}
	}
	return uid, len(uid) >= 16
}

// startOf is the starttime of /proc/<pid>/stat, its 22nd field; the second one, in
// parentheses, is what the process calls itself.
func startOf(stat []byte) (uint64, bool) {
	at := bytes.LastIndexByte(stat, ')')
	if at < 0 {
		return 0, false
	}
	fields := bytes.Fields(stat[at+1:])
	if len(fields) < 20 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(fields[19]), 10, 64)
	return n, err == nil
}

// Sandbox is what holds a pod together: its network namespace, and the process by which that was
// found. Not safe for concurrent use but for its Namespace.
type Sandbox struct {
	Namespace *Namespace
	process   *os.File // its directory in proc
	start     uint64
}

// openSandbox opens the namespace of the process whose directory in proc is dir, if that still is the
// one that started at start.
func openSandbox(dir string, start uint64) (*Sandbox, error) {
	process, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	s := &Sandbox{process: process, start: start}
	ns, err := os.Open(filepath.Join(dir, "ns/net"))
	if err == nil {
		s.Namespace, err = newNamespace(ns)
	}
	if err == nil { // another one's directory may have been opened
		alive, unknown := s.alive()
		if err = unknown; err == nil && !alive {
			err = unix.ESRCH
		}
		if err != nil {
			s.Namespace.Close()
		}
	}
	if err != nil {
		process.Close()
		return nil, fmt.Errorf("process %s: %w", dir, err)
	}
	return s, nil
}

// Alive reports whether the process still runs, in the namespace, as far as is known: while this process can open no
// files it does.
func (s *Sandbox) Alive() bool {
	alive, unknown := s.alive()
	return alive || unknown != nil
}

// alive is Alive with an error if that cannot be said.
func (s *Sandbox) alive() (is bool, unknown error) {
	stat, err := readAt(int(s.process.Fd()), "stat", 4096)
	if err != nil {
		return false, lacking(err)
	}
	if start, ok := startOf(stat); !ok || start != s.start {
		return false, nil
	}
	var st unix.Stat_t
	err = unix.Fstatat(int(s.process.Fd()), "ns/net", &st, 0)
	return err == nil && ID{uint64(st.Dev), st.Ino} == s.Namespace.ID(), lacking(err)
}

// lacking returns err if it says nothing of a file: this process or its host lacks descriptors or memory.
func lacking(err error) error {
	if Lacking(err) {
		return err
	}
	return nil
}

// Lacking reports whether err says nothing of what was to be opened, as this process or its host lacks descriptors or memory.
func Lacking(err error) bool {
	return slices.ContainsFunc([]unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EINTR}, func(e unix.Errno) bool { return errors.Is(err, e) })
}

// readAt reads at most limit bytes of a file in the directory dir.
func readAt(dir int, name string, limit int) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	b := make([]byte, limit)
	n, err := unix.Read(fd, b)
	return b[:max(n, 0)], err
}

// maxFile bounds what ReadFile takes of a pod's file.
const maxFile = 64 << 10

// ReadFile reads a regular file as the pod sees it, at most 64 KiB: the pod's links lead nowhere outside it.
func (s *Sandbox) ReadFile(path string) ([]byte, error) {
	root, err := unix.Openat(int(s.process.Fd()), "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open root of a pod for", Path: path, Err: err}
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, strings.TrimPrefix(path, "/"), &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOCTTY, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, &os.PathError{Op: "open in a pod", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	switch st, err := f.Stat(); {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, &os.PathError{Op: "read in a pod", Path: path, Err: errors.New("is no regular file")}
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = &os.PathError{Op: "read in a pod", Path: path, Err: fmt.Errorf("is longer than %d bytes", maxFile)}
	}
	return b, err
}

// Close lets go of the namespace and the process.
func (s *Sandbox) Close() {
	s.Namespace.Close()
	s.process.Close()
}
