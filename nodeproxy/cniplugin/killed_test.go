//go:build linux

package cniplugin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cnisocket"
)

// serveAlone is a node proxy in a process of its own: it says when it has opened its socket, takes the name over when it is told to,
// and captures a pod in 0 to 20 ms.
func serveAlone(path string) int {
	s, err := cnisocket.Listen(path, slow{}, func(err error) {
		if os.Getenv("CNI_TEST_SAYS") != "" {
			fmt.Fprintln(os.Stderr, err)
		}
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("open")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := s.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

type slow struct{}

func (slow) Add(ctx context.Context, r cnisocket.Request, f *os.File) cnisocket.Reply {
	f.Close()
	select {
	case <-ctx.Done():
		return cnisocket.Reply{Verdict: cnisocket.Stopping, Reason: "this node proxy stops"}
	case <-time.After(time.Duration(rand.IntN(20)) * time.Millisecond):
		return cnisocket.Reply{Verdict: cnisocket.Captured}
	}
}
func (slow) Check(cnisocket.Request) cnisocket.Reply {
	return cnisocket.Reply{Verdict: cnisocket.Captured}
}
func (slow) Delete(cnisocket.Request) {}
func (slow) Retain([]string)          {}

// server is one such process.
type server struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startServer(t *testing.T, path string) *server {
	t.Helper()
	s := &server{cmd: exec.Command("/proc/self/exe")}
	s.cmd.Env = append(os.Environ(), "CNI_TEST_SERVER="+path)
	s.cmd.Stderr = os.Stderr
	var err error
	s.in, err = s.cmd.StdinPipe()
	must(t, err)
	out, err := s.cmd.StdoutPipe()
	must(t, err)
	s.out = bufio.NewReader(out)
	must(t, netspace.Launch(s.cmd))
	return s
}

// opened waits until it has opened its socket, and has it take the name over.
func (s *server) opened(t *testing.T) {
	t.Helper()
	if _, err := s.out.ReadString('\n'); err != nil {
		t.Fatal("a process that starts has ended:", err)
	}
	if _, err := io.WriteString(s.in, "go\n"); err != nil {
		t.Fatal(err)
	}
}

func (s *server) end(how syscall.Signal) {
	s.cmd.Process.Signal(how)
	s.cmd.Wait()
}

// However node proxies are killed, stopped and replaced, two that start at once among them: a pod waits no longer than until
// one of them answers.
func TestNoPodWaitsLongerThanForTheNextNodeProxy(t *testing.T) {
	netspace.NeedRoot(t)
	const adds = 1000 // 5000 take 13 s, and were run when this was written
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	path := filepath.Join(t.TempDir(), "cni.sock")
	now := startServer(t, path)
	now.opened(t)
	c := &call{Config: Config{Socket: path}, timeout: 10 * time.Second}
	var mu sync.Mutex
	var absent []span // no process was there to answer
	var long []span
	var left atomic.Int64
	left.Store(adds)
	var askers sync.WaitGroup
	for range 8 {
		askers.Go(func() {
			for left.Add(-1) >= 0 {
				began := time.Now()
				err := c.announce(cnisocket.Request{Command: cnisocket.Add, UID: "0a1b2c3d", Container: "c", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, "/proc/self/ns/net")
				if err != nil {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
				if took := time.Since(began); took > time.Second {
					mu.Lock()
					long = append(long, span{began, took})
					mu.Unlock()
				}
			}
		})
	}
	kinds := map[string]int{}
	for left.Load() > 0 {
		next := startServer(t, path)
		switch k := r.IntN(4); k {
		case 0: // it is killed, and another one starts, as by the kubelet
			kinds["killed"]++
			began := time.Now()
			now.end(syscall.SIGKILL)
			next.opened(t)
			mu.Lock()
			absent = append(absent, span{began, time.Since(began)})
			mu.Unlock()
		case 1: // it is stopped when the next one is there
			kinds["stopped"]++
			next.opened(t)
			now.end(syscall.SIGTERM)
		case 2: // it is killed just when the next one takes over
			kinds["killed at a take-over"]++
			next.opened(t)
			now.end(syscall.SIGKILL)
		case 3: // two start at once, and one of them is killed before it has the name
			kinds["two start"]++
			third := startServer(t, path)
			next.opened(t)
			now.end(syscall.SIGTERM)
			third.end(syscall.SIGKILL)
		}
		now = next
		wait := time.NewTimer(time.Duration(r.IntN(60)) * time.Millisecond)
		<-wait.C
	}
	askers.Wait()
	now.end(syscall.SIGTERM)
	t.Logf("%d pods, %v, %d of more than 1 s", adds, kinds, len(long))
	for _, l := range long {
		without := time.Duration(0)
		for _, a := range absent {
			without += l.overlap(a)
		}
		if l.took-without > time.Second {
			t.Errorf("a pod waited for %v, %v of which nobody was there", l.took, without)
		}
	}
}

// span is some time.
type span struct {
	began time.Time
	took  time.Duration
}

func (s span) overlap(o span) time.Duration {
	from, to := s.began, s.began.Add(s.took)
	if o.began.After(from) {
		from = o.began
	}
	if end := o.began.Add(o.took); end.Before(to) {
		to = end
	}
	return max(0, to.Sub(from))
}
