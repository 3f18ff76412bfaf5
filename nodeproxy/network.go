package nodeproxy

import (
	"net"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/tcp"
)

// dialTCP connects within timeout. Tests replace it with an in-memory network.
type dialTCP = tcp.Dial

// appConn is the connection of a local application: a *net.TCPConn outside tests.
type appConn interface {
	net.Conn
	CloseWrite() error
	SetLinger(sec int) error
	SyscallConn() (syscall.RawConn, error)
}

// memoryConn is an in-memory connection, which has no file descriptor.
type memoryConn interface {
	TryRead(p []byte) (int, error)
	StateClose() bool
}

// tryRead reads what app has sent so far, with the results of read(2). fd is the descriptor from
// its RawConn.
func tryRead(app appConn, fd uintptr, p []byte) (int, error) {
	if m, ok := app.(memoryConn); ok {
		return m.TryRead(p)
	}
	for {
		n, err := syscall.Read(int(fd), p)
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// hopKeepAlive is the TCP keep-alive period to pods and gateways. Sessions there also send PINGs.
const hopKeepAlive = 180 * time.Second

func dialKernel(keepAlive time.Duration, more ...tcp.Control) dialTCP {
	return tcp.Dialer(keepAlive, tcp.Controls(append(more, tcp.ResetUnlessConnected)...))
}

// boundMemory limits the kernel buffers of conn if the memory of this process is limited. near
// means that the peer is on this node.
func (p *Proxy) boundMemory(conn net.Conn, near bool) {
	if p.cfg.Memory != nil {
		tcp.BoundMemory(conn, near)
	}
}

// reset closes conn with a TCP RST.
func reset(conn net.Conn) {
	if l, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		l.SetLinger(0)
	}
	conn.Close()
}
