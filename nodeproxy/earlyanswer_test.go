package nodeproxy

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// An application that answers and closes before it has read all it was sent: its client has the answer, as without us.
func TestAnEarlyAnswerIsNotLostInAPlainRelay(t *testing.T) {
	answer := strings.Repeat("x", 8<<10)
	got := func(client, server *net.TCPConn) int {
		go func() {
			b := make([]byte, 64<<10)
			for {
				if _, err := client.Write(b); err != nil {
					return
				}
			}
		}()
		io.ReadFull(server, make([]byte, 1<<10))
		io.WriteString(server, answer)
		server.Close()
		client.SetReadDeadline(time.Now().Add(2 * time.Second))
		n, _ := io.Copy(io.Discard, client)
		return int(n)
	}
	direct, through := 0, 0
	for range 100 {
		c, s := tcpPair(t)
		if got(c, s) == len(answer) {
			direct++
		}
		r := relayPlain(t)
		if got(r.client, r.server) == len(answer) {
			through++
		}
	}
	t.Logf("whole answers: %d directly, %d through the relay", direct, through)
	if through < direct {
		t.Errorf("%d of %d answers are lost", direct-through, direct)
	}
}
