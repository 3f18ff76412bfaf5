package lab

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// starter starts children from one thread that lives as long as it does: a
// child's death signal follows the thread that started it, not the process
// (prctl(2), PR_SET_PDEATHSIG), and Go ends threads when it likes. Children are
// in the thread's network.
type starter struct {
	jobs chan func()
	done chan struct{}
}

func newStarter() *starter {
	s := &starter{jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

// close ends the thread. Children still alive are killed by the kernel.
func (s *starter) close() {
	close(s.jobs)
	<-s.done
}

func (s *starter) start(c *exec.Cmd) error {
	err := make(chan error, 1)
	s.jobs <- func() { err <- c.Start() }
	return <-err
}

// process is one child. Its fields are set once by launch; the rest is safe
// for concurrent use.
type process struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	gone chan struct{} // closed once it has ended and its output was read

	mu      sync.Mutex
	asked   bool // somebody wanted it to end
	status  string
	endedAt time.Time
}

// output is what becomes of a child's lines.
type output struct {
	file *os.File
	line func(data []byte) // called for each line, in order; data is not kept
}

// maxLogLine bounds what one line may hold in memory; a longer one is split.
const maxLogLine = 256 << 10

// launch starts name with args in dir; stdout and stderr both go to o.
// onExit runs after the child has ended, before gone is closed.
func launch(s *starter, name, binary string, args []string, dir string, stdin bool, stdout func(line []byte), o output, onExit func(*process)) (*process, error) {
	p := &process{name: name, gone: make(chan struct{})}
	p.cmd = exec.Command(binary, args...)
	p.cmd.Dir = dir
	p.cmd.SysProcAttr = childAttr()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.cmd.Stderr = w
	p.cmd.Stdout = w
	closers := []io.Closer{w}
	var ctl *os.File
	if stdout != nil {
		var cw *os.File
		if ctl, cw, err = os.Pipe(); err != nil {
			r.Close()
			w.Close()
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
		p.cmd.Stdout = cw
		closers = append(closers, cw)
	}
	if stdin {
		if p.in, err = p.cmd.StdinPipe(); err != nil {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
	}
	err = s.start(p.cmd)
	for _, c := range closers {
		c.Close()
	}
	if err != nil {
		r.Close()
		if ctl != nil {
			ctl.Close()
		}
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	var readers sync.WaitGroup
	readers.Go(func() { eachLine(r, func(b []byte) { o.file.Write(append(b[:len(b):len(b)], '\n')); o.line(b) }) })
	if ctl != nil {
		readers.Go(func() { eachLine(ctl, stdout) })
	}
	go func() {
		p.reap()
		readers.Wait()
		onExit(p)
		close(p.gone)
	}()
	return p, nil
}

func eachLine(r io.ReadCloser, f func([]byte)) {
	defer r.Close()
	br := bufio.NewReaderSize(r, maxLogLine)
	for {
		line, _, err := br.ReadLine()
		if err != nil {
			return
		}
		f(line)
	}
}

func (p *process) reap() {
	err := p.cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endedAt = time.Now()
	p.status = "exit status 0"
	if err != nil {
		p.status = err.Error()
	}
}

// unasked reports how the process ended if nobody wanted it to.
func (p *process) unasked() (status string, at time.Time, yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status, p.endedAt, !p.asked
}

// signal sends sig to the process and everything it started.
func (p *process) signal(sig syscall.Signal) {
	p.mu.Lock()
	p.asked = true
	p.mu.Unlock()
	if err := syscall.Kill(-p.cmd.Process.Pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		p.cmd.Process.Signal(sig)
	}
}

// freeze stops the process with SIGSTOP and returns once it stands still.
func (p *process) freeze(wait time.Duration) error {
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	for deadline := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
		state, err := p.state()
		switch {
		case err != nil:
			return fmt.Errorf("stop %s: %w", p.name, err)
		case state == 'T':
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("stop %s: it is in state %c after %v", p.name, state, wait)
		}
	}
}

// thaw lets a frozen process go on.
func (p *process) thaw() error {
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGCONT); err != nil {
		return fmt.Errorf("continue %s: %w", p.name, err)
	}
	return nil
}

// state is the process's state as in proc(5): T is stopped.
func (p *process) state() (byte, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	if i := bytes.LastIndexByte(b, ')'); i >= 0 && i+2 < len(b) {
		return b[i+2], nil
	}
	return 0, fmt.Errorf("read its state: %q", b)
}

// kill ends the process at once and waits for it.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.gone
}

// stop asks the process to end, and kills it after grace.
func (p *process) stop(grace time.Duration) {
	select {
	case <-p.gone:
		return
	default:
	}
	p.signal(syscall.SIGTERM)
	if p.in != nil {
		p.in.Close()
	}
	select {
	case <-p.gone:
	case <-time.After(grace):
		p.kill()
	}
}

// tail returns the last lines of the log file at path.
func tail(path string, lines int) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 16 << 10
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		f.Seek(max(0, end-most), io.SeekStart)
	}
	b, _ := io.ReadAll(f)
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// createLog opens the log file of a process; it appends, so that a process
// that was killed and started again has one story.
func createLog(dir, name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
}
