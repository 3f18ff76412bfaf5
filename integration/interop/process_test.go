package interop

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is one proxy in its namespace. It can be started again after its end.
type process struct {
	host string
	args []string // program and arguments
	env  []string
	log  string // file

	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended and cmd says how
}

// start runs p and returns when ready has no error.
func (w *world) start(p *process, ready func() error) error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command("ip", append([]string{"netns", "exec", w.space.prefix + p.host}, p.args...)...)
	p.cmd.Env = append(os.Environ(), p.env...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = w.dir, log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// Pdeathsig goes by the thread that starts the process: the starter's lives
	// as long as the tests do.
	errs := make(chan error)
	w.starter <- func() { errs <- p.cmd.Start() }
	if err := <-errs; err != nil {
		return err
	}
	p.ended = make(chan struct{})
	go func() {
		defer close(p.ended)
		p.cmd.Wait()
	}()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ready() == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s on %s ended at once: %v\n%s", filepath.Base(p.args[0]), p.host, p.cmd.ProcessState, tail(p.log))
		default:
		}
	}
	return fmt.Errorf("%s on %s does not get ready\n%s", filepath.Base(p.args[0]), p.host, tail(p.log))
}

// healthy asks a host's readiness page.
func (w *world) healthy(host string, port int) func() error {
	return func() error {
		_, err := w.get(host, port, "/healthz/ready")
		return err
	}
}

// ready asks whether a proxy serves.
func (w *world) ready(p *process) func() error {
	if strings.HasSuffix(p.host, "stock") {
		return w.healthy(p.host, stockReady)
	}
	return w.healthy(p.host, ourAdmin)
}

// accepts asks whether somebody listens.
func (w *world) accepts(host, address string) func() error {
	return func() error {
		c, err := w.dial(host, address)
		if err == nil {
			c.Close()
		}
		return err
	}
}

// stop sends a signal and waits for the end.
func (p *process) stop(sig os.Signal, within time.Duration) error {
	p.cmd.Process.Signal(sig)
	select {
	case <-p.ended:
		return nil
	case <-time.After(within):
		return fmt.Errorf("%s on %s goes on %v after %v", filepath.Base(p.args[0]), p.host, within, sig)
	}
}

// get asks the admin server of a host's process.
func (w *world) get(host string, port int, path string) ([]byte, error) {
	c, err := w.dial(host, fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }, DisableKeepAlives: true}
	r, err := (&http.Client{Transport: t, Timeout: 5 * time.Second}).Get("http://admin" + path)
	if err != nil {
		return nil, err
	}
	return body(r)
}

// tail is the end of a log, for the reader of a failure.
func tail(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-3000):])
}
