//go:build linux

package cnisocket

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Node is who captures pods. Its methods are called from many goroutines.
type Node interface {
	// Add has a pod captured in its network namespace, and returns what came of it, at the latest when ctx ends. It
	// owns the file.
	Add(ctx context.Context, r Request, namespace *os.File) Reply
	// Check says how it is with a pod.
	Check(r Request) Reply
	// Delete lets go of the namespace of a pod's sandbox at once.
	Delete(r Request)
	// Retain lets go of the namespaces of all sandboxes but these.
	Retain(containers []string)
}

const (
	// maxRequests is how many are heard at once: more than a kubelet starts pods. Who comes then is not answered, and
	// comes again.
	maxRequests = 256
	// sayWithin is how long a connection has to bring its request, and to take its reply.
	sayWithin = 2 * time.Second
)

// Server answers the plugins of one node.
type Server struct {
	path     string
	own      string // where it listens before Run
	listener *net.UnixListener
	node     Node
	failed   func(error) // told of a connection that made no sense
}

// Listen makes the directory of the socket if it is not there, and opens one beside it, which takes its name when Run is
// called: until then whoever has it keeps it. What stands in its place and is none of ours is an error, as Free says.
// failed is told of requests that make no sense.
func Listen(path string, node Node, failed func(error)) (*Server, error) {
	s := &Server{path: path, own: fmt.Sprintf("%s.%016x", path, rand.Uint64()), node: node, failed: failed}
	if err := Free(path); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	removeDead(path)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: s.own})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // its name may be another one's by then
	if s.listener = l; os.Chmod(s.own, 0o600) != nil {
		s.Close()
		return nil, fmt.Errorf("%s: its mode cannot be changed to 0600", s.own)
	}
	return s, nil
}

// deadAfter is how long a socket is left alone: it refuses between its bind and its listen, in another process that starts.
const deadAfter = 10 * time.Second

// removeDead removes sockets that processes have left which were killed before Run: those that have the names of Listen.
// Whatever else is in that directory is somebody's.
func removeDead(path string) {
	list, _ := os.ReadDir(filepath.Dir(path)) // who cannot read it hears so from the bind
	for _, x := range list {
		end, ok := strings.CutPrefix(x.Name(), filepath.Base(path)+".")
		if !ok || !ownEnd(end) {
			continue
		}
		name := filepath.Join(filepath.Dir(path), x.Name())
		if st, err := os.Lstat(name); err != nil || st.Mode().Type() != os.ModeSocket || time.Since(st.ModTime()) < deadAfter {
			continue
		}
		c, err := net.DialTimeout("unixpacket", name, 100*time.Millisecond)
		if err == nil {
			c.Close()
		} else if errors.Is(err, unix.ECONNREFUSED) {
			os.Remove(name)
		}
	}
}

// ownEnd reports whether end is what Listen puts behind the name of a socket.
func ownEnd(end string) bool {
	return len(end) == 16 && strings.Trim(end, "0123456789abcdef") == ""
}

// Close ends a server that is not run.
func (s *Server) Close() {
	s.listener.Close()
	os.Remove(s.own)
}

// Run takes the socket's name and answers, until ctx ends and all that were heard have been answered. The name stays: it
// may be the next process's already, and if not whoever dials it is refused.
func (s *Server) Run(ctx context.Context) error {
	defer s.Close()
	if err := Free(s.path); err != nil { // it may have been made since Listen
		return fmt.Errorf("take over the socket of CNI plugins: %w", err)
	}
	if err := os.Rename(s.own, s.path); err != nil {
		return fmt.Errorf("take over the socket of CNI plugins: %w", err)
	}
	defer context.AfterFunc(ctx, func() { s.listener.Close() })()
	var running sync.WaitGroup
	defer running.Wait()
	room := make(chan struct{}, maxRequests)
	for {
		c, err := s.listener.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return nil
		case err != nil: // for lack of descriptors, which others may give back
			s.failed(err)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		select {
		case room <- struct{}{}:
			running.Go(func() {
				defer func() { <-room }()
				s.serve(ctx, c)
			})
		default:
			c.Close()
		}
	}
}

// serve answers one connection, which it owns.
func (s *Server) serve(ctx context.Context, c *net.UnixConn) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(sayWithin))
	reply, err := s.hear(ctx, c)
	if err != nil {
		s.failed(err)
		reply = Reply{Verdict: Refused, Reason: err.Error()}
	}
	c.SetWriteDeadline(time.Now().Add(sayWithin))
	c.Write(reply.encode()) // who has gone needs none
}

// hear takes the request of a connection and returns the reply.
func (s *Server) hear(ctx context.Context, c *net.UnixConn) (Reply, error) {
	if err := fromRoot(c); err != nil {
		return Reply{}, err
	}
	b, namespace, err := read(c)
	if errors.Is(err, errNoRoom) {
		s.failed(err)
		return Reply{Verdict: Stopping, Reason: err.Error()}, nil
	}
	if err != nil {
		return Reply{}, err
	}
	r, err := decode(b)
	if err == nil && r.Command == Add && namespace == nil {
		err = errors.New("ADD came without the network namespace of the pod: the plugin is to pass its file descriptor")
	}
	if err != nil || r.Command != Add {
		namespace.Close() // of a nil file: an error, and no more
	}
	if err != nil {
		return Reply{}, err
	}
	switch r.Command {
	case Add:
		wait, cancel := context.WithTimeout(ctx, time.Duration(r.WaitMS)*time.Millisecond)
		defer cancel()
		c.SetReadDeadline(time.Time{})
		ended := make(chan struct{})
		go func() { // ends with the connection, or by the deadline below
			defer close(ended)
			c.Read(make([]byte, 1)) // a plugin says no more: it has gone
			cancel()
		}()
		reply := s.node.Add(wait, r, namespace)
		c.SetReadDeadline(time.Unix(1, 0))
		<-ended
		return reply, nil
	case Check:
		return s.node.Check(r), nil
	case Delete:
		s.node.Delete(r)
	case Retain:
		s.node.Retain(r.Containers)
	}
	return Reply{Verdict: Done}, nil
}

// fromRoot has an error if the other end was not opened by root.
func fromRoot(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var who *unix.Ucred
	var inner error
	if err := raw.Control(func(fd uintptr) { who, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if inner != nil {
		return os.NewSyscallError("getsockopt SO_PEERCRED", inner)
	}
	if who.Uid != 0 {
		return fmt.Errorf("process %d of user %d has connected: only root may, as the container runtime runs plugins", who.Pid, who.Uid)
	}
	return nil
}

// errNoRoom is that of a message whose file this process could not take: who has sent it asks again.
var errNoRoom = errors.New("the node proxy has no descriptor left for the network namespace of a pod: raise its limit of open files (RLIMIT_NOFILE)")

// read takes one message, and the file that is with it; nil if none is.
func read(c *net.UnixConn) (b []byte, file *os.File, err error) {
	b = make([]byte, maxMessage)
	with := make([]byte, unix.CmsgSpace(4*4)) // more than one file, so that those are found and closed
	n, oobn, flags, _, err := c.ReadMsgUnix(b, with)
	files := filesOf(with[:max(oobn, 0)])
	if err == nil && len(files) == 0 && flags&unix.MSG_CTRUNC != 0 { // there is room for more than one
		return nil, nil, errNoRoom
	}
	if err == nil && (n == 0 || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(files) > 1) {
		err = fmt.Errorf("want one message of 1 to %d bytes, with one file at most", maxMessage)
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, nil, err
	}
	if len(files) == 1 {
		file = files[0]
	}
	return b[:n], file, nil
}

// filesOf returns the files that came with a message; the caller owns them.
func filesOf(with []byte) (out []*os.File) {
	messages, err := unix.ParseSocketControlMessage(with)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			out = append(out, os.NewFile(uintptr(fd), "network namespace of a pod"))
		}
	}
	return out
}
