package h2conform

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// Target is an endpoint under test. Exactly one of Server and Client is set.
type Target struct {
	Name   string
	Server *Server
	Client *Client
}

// Server is an endpoint that accepts connections and CONNECTs.
type Server struct {
	// Dial returns a connection on which the preface is due.
	Dial func(t testing.TB) net.Conn
	// Authority leads to an application that runs Echo.
	Authority string
}

// Client is an endpoint that opens connections and CONNECTs.
type Client struct {
	// Start has the endpoint open a new session and returns the server's end of
	// it, where the preface arrives, and what opens a stream on that session,
	// which the server may answer or not.
	Start func(t testing.TB) (session net.Conn, open func() net.Conn)
	// Elsewhere says that after a stream failed the endpoint opens others on
	// other sessions, of its own free will: that one could be opened on this one
	// is not tried then.
	Elsewhere bool
}

// keepOpen, as the first bytes of a connection to Echo, keeps its half open
// after the other one has ended, and has nothing read any more.
const keepOpen = "keep open"

// Echo sends back what it receives until it is told to keep its half open; then
// it waits for done.
func Echo(c net.Conn, done <-chan struct{}) {
	defer c.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			if _, err := c.Write(buf[:n]); err != nil {
				return
			}
		}
		if n > 0 && strings.HasSuffix(string(buf[:n]), keepOpen) {
			<-done
			return
		}
		if err != nil {
			return
		}
	}
}

// stream is a stream between the peer and the endpoint, with an echo at one end.
type stream struct {
	id   uint32
	echo func(text string) error
	app  net.Conn // of a client
}

// appEcho sends text into the application's end of a client's stream.
func appEcho(app net.Conn) func(string) error {
	return func(text string) error {
		app.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(app, text); err != nil {
			return err
		}
		_, err := io.ReadFull(app, make([]byte, len(text)))
		return err
	}
}
