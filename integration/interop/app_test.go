package interop

import (
	"crypto/sha256"
	"io"
	"net"
)

// What a connection asks of the application, by its first byte.
const (
	verbWho   = 'w' // says the pod's name and closes
	verbEcho  = 'e' // echoes until FIN, then closes
	verbTake  = 't' // takes everything until FIN, then answers its SHA-256
	verbLeave = 'l' // says farewell and FIN; then as verbTake, but tells the test
	verbTell  = 'h' // takes everything until the end and tells the test
	verbReset = 'r' // says farewell, waits for an answer and resets the connection
	verbStall = 's' // reads nothing until the test says so; then as verbTake
)

const farewell = "that is all from here"

// app is the application in the pods, in this process: it listens on port 8080
// of every server host. Nobody listens on 8081.
type app struct {
	left   chan taken    // what arrived after a farewell, and with verbTell
	resume chan struct{} // closed when those that stall are to go on
}

// taken is what an application got until the end of a connection, and how that
// ended.
type taken struct {
	bytes int64
	sum   [sha256.Size]byte
	err   error
}

func (a *app) serve(name string, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go a.answer(name, c.(*net.TCPConn))
	}
}

func (a *app) answer(name string, c *net.TCPConn) {
	defer c.Close()
	var verb [1]byte
	if _, err := io.ReadFull(c, verb[:]); err != nil {
		return
	}
	switch verb[0] {
	case verbWho:
		io.WriteString(c, name)
	case verbEcho:
		io.Copy(c, c)
	case verbTake:
		if got := take(c); got.err == nil {
			c.Write(got.sum[:])
		}
	case verbLeave:
		io.WriteString(c, farewell)
		c.CloseWrite()
		a.left <- take(c)
	case verbTell:
		a.left <- take(c)
	case verbReset:
		io.WriteString(c, farewell)
		io.ReadFull(c, verb[:])
		c.SetLinger(0)
	case verbStall:
		<-a.resume
		if got := take(c); got.err == nil {
			c.Write(got.sum[:])
		}
	}
}

func take(c net.Conn) (t taken) {
	h := sha256.New()
	t.bytes, t.err = io.Copy(h, c)
	t.sum = [sha256.Size]byte(h.Sum(nil))
	return t
}
