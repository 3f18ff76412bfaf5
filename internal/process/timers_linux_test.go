package process

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// report is run in a process of its own: it calls CoarseTimers and says what
// became of it, for each of some threads.
func report() {
	if err := CoarseTimers(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	slack := make(chan int)
	for range 3 {
		go func() {
			n, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
			slack <- n
			unix.Nanosleep(&unix.Timespec{Nsec: 1e7}, nil) // the others need threads of their own
		}()
	}
	fmt.Println("process", os.Getpid(), "args", os.Args[1:], "slack", <-slack, <-slack, <-slack, "hang-ups ignored", signal.Ignored(syscall.SIGHUP))
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "report" {
		report()
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "stubborn" {
		stubborn()
		return
	}
	os.Exit(m.Run())
}

func TestCoarseTimersHoldInEveryThreadOfTheSameProcess(t *testing.T) {
	for _, c := range []struct {
		name, env string
		slack     time.Duration
	}{
		{"default", "ISTHMUS_TIMER_SLACK=", timerSlack},
		{"kept as it is", "ISTHMUS_TIMER_SLACK=keep", 50 * time.Microsecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "report", "two words")
			cmd.Env = append(os.Environ(), c.env)
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			want := fmt.Sprintf("process %d args [report two words] slack %d %d %d hang-ups ignored true", cmd.Process.Pid, c.slack, c.slack, c.slack)
			if got := strings.TrimSpace(string(out)); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}
