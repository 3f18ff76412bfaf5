package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// interruptible is false in what a shell runs in the background, and in all that is
// started by it: SIGINT is ignored there. Asked for later, package signal does not say so any more.
var interruptible = !signal.Ignored(syscall.SIGINT)

// stubborn is run in a process of its own: it says when it runs and when it was told to
// stop, and never does.
func stubborn() {
	Main(spec(config{run: func(ctx context.Context) error {
		os.Stdout.WriteString("running\n")
		<-ctx.Done()
		os.Stdout.WriteString("told\n")
		select {}
	}}), []string{"--config", "x"}, &bytes.Buffer{})
}

// A process that serves on, or drains, is ended at once by a second signal.
func TestASecondSignalEndsAtOnce(t *testing.T) {
	seconds := []syscall.Signal{syscall.SIGTERM}
	if interruptible {
		seconds = append(seconds, syscall.SIGINT)
	}
	for _, second := range seconds {
		cmd := exec.Command(os.Args[0], "stubborn")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		limit := time.AfterFunc(30*time.Second, func() { cmd.Process.Kill() })
		lines := bufio.NewScanner(out)
		for _, want := range []string{"running", "told"} {
			if !lines.Scan() || lines.Text() != want {
				t.Fatalf("the process says %q (%v); want %q", lines.Text(), lines.Err(), want)
			}
			sig := syscall.SIGTERM
			if want == "told" {
				sig = second
			}
			cmd.Process.Signal(sig)
		}
		// context.AfterFunc gives up the handler a moment after the context ends.
		tick := time.NewTicker(20 * time.Millisecond)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for waiting := true; waiting; {
			select {
			case err = <-ended:
				waiting = false
			case <-tick.C:
				cmd.Process.Signal(second)
			}
		}
		tick.Stop()
		limit.Stop()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != second {
			t.Errorf("it ended with %v; want %v", err, second)
		}
	}
}
