//go:build linux

package cnisocket

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// node is a Node that answers Add with what add says.
type node struct {
	name    string
	add     func(context.Context, Request, *os.File) Reply
	deleted atomic.Int64
	kept    atomic.Value
}

func (n *node) Add(ctx context.Context, r Request, f *os.File) Reply {
	defer f.Close()
	if n.add != nil {
		return n.add(ctx, r, f)
	}
	return Reply{Verdict: Captured, Reason: n.name}
}
func (n *node) Check(Request) Reply        { return Reply{Verdict: Outside} }
func (n *node) Delete(Request)             { n.deleted.Add(1) }
func (n *node) Retain(containers []string) { n.kept.Store(containers) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// listening returns a server that runs until stop is called.
func listening(t *testing.T, path string, n *node, failed func(error)) (stop func()) {
	t.Helper()
	if failed == nil {
		failed = func(err error) { t.Error(err) }
	}
	s, err := Listen(path, n, failed)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	taken := make(chan struct{})
	go func() {
		go func() { // Run takes the name at once
			for {
				if _, err := os.Stat(s.own); err != nil {
					close(taken)
					return
				}
				time.Sleep(time.Millisecond)
			}
		}()
		done <- s.Run(ctx)
	}()
	<-taken
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func request(c Command) Request {
	return Request{Command: c, UID: "u-1", Container: "c-1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, WaitMS: 5000}
}

func space(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open("/proc/self/ns/net")
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestTheNamespaceComesWithTheRequest(t *testing.T) {
	netspace.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "new", "cni.sock")
	mine := space(t)
	n := &node{add: func(_ context.Context, r Request, f *os.File) Reply {
		a, err := mine.Stat()
		b, err2 := f.Stat()
		if err != nil || err2 != nil || !os.SameFile(a, b) {
			return Reply{Verdict: Failed, Reason: "another file"}
		}
		return Reply{Verdict: Captured, Reason: r.UID}
	}}
	listening(t, path, n, nil)
	got, err := Ask(t.Context(), path, request(Add), mine)
	if err != nil || got.Verdict != Captured || got.Reason != "u-1" {
		t.Errorf("ADD: %+v, %v", got, err)
	}
	if got, err := Ask(t.Context(), path, request(Check), nil); err != nil || got.Verdict != Outside {
		t.Errorf("CHECK: %+v, %v", got, err)
	}
	if got, err := Ask(t.Context(), path, request(Delete), nil); err != nil || got.Verdict != Done || n.deleted.Load() != 1 {
		t.Errorf("DEL: %+v, %v", got, err)
	}
	if got, err := Ask(t.Context(), path, Request{Command: Retain, Containers: []string{"a"}}, nil); err != nil || got.Verdict != Done || len(n.kept.Load().([]string)) != 1 {
		t.Errorf("GC: %+v, %v", got, err)
	}
	st, err := os.Stat(path)
	must(t, err)
	if st.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v, want 0600", st.Mode().Perm())
	}
}

// Requests that make no sense are answered with why, and none of what came with them stays open.
func TestOddRequests(t *testing.T) {
	netspace.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "cni.sock")
	var failed atomic.Int64
	listening(t, path, &node{}, func(error) { failed.Add(1) })
	open := descriptors(t)
	if got, err := Ask(t.Context(), path, request(Add), nil); err != nil || got.Verdict != Refused || !strings.Contains(got.Reason, "without the network namespace") {
		t.Errorf("ADD without a namespace: %+v, %v", got, err)
	}
	bad := request(Add)
	bad.UID = ""
	if got, err := Ask(t.Context(), path, bad, space(t)); err != nil || got.Verdict != Refused || !strings.Contains(got.Reason, "uid") {
		t.Errorf("ADD without a UID: %+v, %v", got, err)
	}
	c, err := net.Dial("unixpacket", path)
	must(t, err)
	f := int(space(t).Fd())
	c.(*net.UnixConn).WriteMsgUnix([]byte("{}"), syscall.UnixRights(f, f, f), nil)
	b := make([]byte, 1024)
	if n, err := c.Read(b); err != nil || !strings.Contains(string(b[:n]), "one file at most") {
		t.Errorf("three files: %q, %v", b[:n], err)
	}
	c.Close()
	if failed.Load() != 3 {
		t.Errorf("%d requests are reported, want 3", failed.Load())
	}
	for end := time.Now().Add(5 * time.Second); descriptors(t) > open+2; time.Sleep(time.Millisecond) { // the two of this test
		if time.Now().After(end) {
			t.Fatalf("%d descriptors, want %d", descriptors(t), open+2)
		}
	}
}

// Who is not root cannot connect; and who could, by a mode that somebody has changed, is not heard.
func TestOnlyRootIsHeard(t *testing.T) {
	netspace.NeedRoot(t)
	dir, err := os.MkdirTemp("", "cnisocket") // not t.TempDir, which only root may search
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "cni.sock")
	n := &node{}
	var failed atomic.Int64
	stop := listening(t, path, n, func(error) { failed.Add(1) })
	if c, err := asNobody(path); !errors.Is(err, syscall.EACCES) {
		t.Errorf("somebody else connects: %v, %v", c, err)
	}
	must(t, os.Chmod(path, 0o777))
	says := func(message []byte) (Reply, error) {
		c, err := asNobody(path)
		must(t, err)
		defer c.Close()
		if message != nil {
			c.Write(message) // it may have been sent away already
		}
		b := make([]byte, maxMessage)
		k, err := c.Read(b)
		if err != nil {
			return Reply{}, err
		}
		return decodeReply(b[:k])
	}
	if got, err := says(nil); err != nil || got.Verdict != Refused || !strings.Contains(got.Reason, "of user 65534 has connected: only root may") {
		t.Errorf("somebody else is answered %+v, %v", got, err)
	}
	r := request(Delete)
	b, err := r.encode()
	must(t, err)
	if got, err := says(b); err == nil && got.Verdict != Refused { // a reset may overtake the reply
		t.Errorf("the request of somebody else is answered %+v", got)
	}
	stop()
	if n.deleted.Load() != 0 || failed.Load() != 2 {
		t.Errorf("%d requests were done and %d reported, want 0 and 2", n.deleted.Load(), failed.Load())
	}
}

// asNobody connects as user 65534.
func asNobody(path string) (net.Conn, error) {
	type opened struct {
		fd  int
		err error
	}
	out := make(chan opened)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine, and nobody else becomes that user
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); e != 0 { // of this thread alone
				err = e
			} else {
				err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
			}
		}
		out <- opened{fd, err}
	}()
	o := <-out
	f := os.NewFile(uintptr(o.fd), path)
	defer f.Close()
	if o.err != nil {
		return nil, o.err
	}
	return net.FileConn(f)
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(list)
}

// A plugin that goes ends its request, and one that is not answered in time says so.
func TestARequestEndsWithItsConnection(t *testing.T) {
	netspace.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "cni.sock")
	ended := make(chan error, 1)
	listening(t, path, &node{add: func(ctx context.Context, _ Request, _ *os.File) Reply {
		<-ctx.Done()
		ended <- ctx.Err()
		return Reply{Verdict: Unknown}
	}}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got, err := Ask(ctx, path, request(Add), space(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it is answered: %+v, %v", got, err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the request ended by %v, want with its connection", err)
	}
	r := request(Add)
	r.WaitMS = 20
	if got, err := Ask(t.Context(), path, r, space(t)); err != nil || got.Verdict != Unknown {
		t.Errorf("after its time: %+v, %v", got, err)
	}
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the request ended by %v, want by its time", err)
	}
}

// The next process takes the name over, and there is no moment in which nobody answers.
func TestTheNextProcessTakesTheSocketOver(t *testing.T) {
	netspace.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "cni.sock")
	left := path + ".0123456789abcdef" // of one that was killed
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: left})
	must(t, err)
	l.SetUnlinkOnClose(false)
	l.Close()
	before := time.Now().Add(-deadAfter)
	must(t, os.Chtimes(left, before, before))
	stop := listening(t, path, &node{name: "0"}, nil)
	if _, err := os.Stat(left); err == nil {
		t.Error("the socket of a dead process is left")
	}
	quit, done := make(chan struct{}), make(chan int)
	go func() {
		asked := 0
		for {
			select {
			case <-quit:
				done <- asked
				return
			default:
			}
			got, err := Ask(context.Background(), path, request(Check), nil)
			for try := 0; try < 5 && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED)); try++ {
				// It came to the one that stops, and is asked once more: the next one has the name by then.
				got, err = Ask(context.Background(), path, request(Check), nil)
			}
			if err != nil || got.Verdict != Outside {
				t.Errorf("request %d: %+v, %v", asked, got, err)
				done <- asked
				return
			}
			asked++
		}
	}()
	for range 20 {
		next := listening(t, path, &node{name: "next"}, nil)
		stop()
		stop = next
	}
	close(quit)
	t.Logf("%d requests", <-done)
	stop()
	if _, err := Ask(t.Context(), path, request(Check), nil); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without a process: %v, want refused", err)
	}
}

// More requests than are heard at once are turned away, and those that were heard are answered.
func TestRequestsAreBounded(t *testing.T) {
	netspace.NeedRoot(t)
	path := filepath.Join(t.TempDir(), "cni.sock")
	var inside, most atomic.Int64
	free := make(chan struct{})
	listening(t, path, &node{add: func(ctx context.Context, _ Request, _ *os.File) Reply {
		most.Store(max(most.Load(), inside.Add(1)))
		defer inside.Add(-1)
		<-free
		return Reply{Verdict: Captured}
	}}, nil)
	var answered, away atomic.Int64
	var all sync.WaitGroup
	mine := space(t)
	for range maxRequests + 20 {
		all.Go(func() {
			got, err := Ask(t.Context(), path, request(Add), mine)
			if err == nil && got.Verdict == Captured {
				answered.Add(1)
			} else if away.Add(1) == 20 {
				close(free)
			}
		})
	}
	all.Wait()
	if answered.Load() != maxRequests || away.Load() != 20 || most.Load() > maxRequests {
		t.Errorf("%d answered, %d turned away, %d at once; want %d, 20 and at most %d", answered.Load(), away.Load(), most.Load(), maxRequests, maxRequests)
	}
}
