// Command isthmus is the operator's tool: it makes keys and certificates, links clusters,
// shows what is in certificates, and answers which version this is. Each command
// is thin: flags, one call into a package, text or JSON.
//
// Exit codes: 0 done, 1 a finding, 2 usage, 3 could not start, 4 inconclusive.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const (
	exitOK           = 0
	exitFinding      = 1 // it ran, and what it looked at is not well
	exitUsage        = 2
	exitStart        = 3 // it could not do its work
	exitInconclusive = 4 // a drill whose fault did not take effect
)

// exitError is what a command returns when its exit code matters. A nil err
// has been reported already and is not printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exit gives err its exit code; nil stays nil.
func exit(code int, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: code, err: err}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command line and returns its exit code. An error that no
// command gave a code is cobra's own: usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	addCompletion(root)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if e := (*exitError)(nil); errors.As(err, &e) {
		if e.err != nil {
			fmt.Fprintf(stderr, "isthmus: %v\n", e.err)
		}
		return e.code
	}
	fmt.Fprintf(stderr, "isthmus: %v\nRun '%s --help' for usage.\n", err, cmd.CommandPath())
	return exitUsage
}
