//go:build linux

package netspace

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	startTime = 20 * time.Second // until a process is ready
	killTime  = 5 * time.Second  // until a killed process has ended
)

// Process is one program in a host. It can be started again after its end.
type Process struct {
	Host string
	Args []string // program and arguments; the directory is the space's
	Env  []string // beside the caller's own
	Log  string   // file that gets what it writes, after what is there
	// Names is a file that the process has for /etc/resolv.conf; empty: that of the machine. It
	// works in a host alone, as the command ip gives a process there mounts of its own.
	Names string

	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended and cmd says how
}

// Build compiles all programs of the repository at root, and returns their directory, which is
// in that of the space.
func (s *Space) Build(root string) (bin string, err error) {
	bin = filepath.Join(s.Dir, "bin")
	build := exec.Command("go", "build", "-o", bin+"/", "./cmd/...")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the binaries: %w\n%s", err, out)
	}
	return bin, nil
}

// Start runs p and returns when ready, which it asks again and again, has no
// error. The process is killed when the caller of Start dies.
func (s *Space) Start(p *Process, ready func() error) error {
	if err := s.run(p); err != nil {
		return err
	}
	name := filepath.Base(p.Args[0])
	for end := time.Now().Add(startTime); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ready() == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s on %s ended at once: %v\n%s", name, p.Host, p.cmd.ProcessState, Tail(p.Log))
		default:
		}
	}
	return fmt.Errorf("%s on %s does not get ready within %v\n%s", name, p.Host, startTime, Tail(p.Log))
}

func (s *Space) run(p *Process) error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := p.Args
	if p.Names != "" {
		args = append([]string{"sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, p.Names}, args...)
	}
	if p.Host != Here {
		args = append([]string{"ip", "netns", "exec", s.prefix + p.Host}, args...)
	}
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Env = append(os.Environ(), p.Env...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = s.Dir, log, log
	if err := Launch(p.cmd); err != nil {
		return err
	}
	p.ended = make(chan struct{})
	go func() {
		defer close(p.ended)
		p.cmd.Wait()
	}()
	s.mu.Lock()
	s.processes = append(s.processes, p)
	s.mu.Unlock()
	return nil
}

// Signal sends a signal; a process that has ended does not mind.
func (p *Process) Signal(sig os.Signal) { p.cmd.Process.Signal(sig) }

// Stop sends a signal and waits for the end.
func (p *Process) Stop(sig os.Signal, within time.Duration) error {
	p.Signal(sig)
	select {
	case <-p.ended:
		return nil
	case <-time.After(within):
		return fmt.Errorf("%s on %s goes on %v after %v", filepath.Base(p.Args[0]), p.Host, within, sig)
	}
}

// Ended is closed when the process, as it was last started, has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// State says how an ended process ended and what it used.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// PID is the process's number: /proc has its memory and processor time.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Tail is the end of a log, for the reader of a failure.
func Tail(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-3000):])
}
