package nodeproxy

import (
	"io"
	"testing"
	"time"
)

// A client that has filled all buffers towards an application that does not read, and resets, is gone: the
// application hears of it, and nothing is kept of the connection.
func TestAPlainRelayEndsWhenWhoWroteTooMuchResets(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"client", "server"} {
		r := relayPlain(t)
		by, other := r.client, r.server
		if how == "server" {
			by, other = other, by
		}
		by.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		n, err := by.Write(make([]byte, 64<<20))
		if err == nil {
			t.Fatal("nothing was full")
		}
		by.SetLinger(0)
		by.Close()
		select {
		case <-r.ended:
		case <-time.After(lastWordsWithin + 5*time.Second):
			t.Errorf("the %s has reset %v ago, behind %d bytes, and the relay goes on", how, lastWordsWithin+5*time.Second, n)
			go io.Copy(io.Discard, other)
		}
	}
}
