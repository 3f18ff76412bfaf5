package hbone

import (
	"context"
	"io"
	"net"
	"testing"
)

// Whoever asks for the replies of the connection hears of each, until they have heard
// enough, and never of fewer bytes than the reply may be an answer to.
func TestARelayTellsOfReplies(t *testing.T) {
	p := newProxied(t, rigConfig{})
	a, b := tcpPair(t)
	defer a.Close()
	st := open(t, p.r.client)
	handed := make(chan int64, 10)
	calls := 0
	result := make(chan RelayResult, 1)
	go func() {
		result <- RelayWith(context.Background(), st, b, RelayOptions{OnReply: func(n int64) bool {
			handed <- n
			calls++
			return calls < 3
		}})
	}()
	app := (<-p.app).(*net.TCPConn)
	defer app.Close()
	buf, sum := make([]byte, 16), int64(0)
	for i, size := range []int{0, 5, 7, 9} {
		app.Write(make([]byte, size))
		io.ReadFull(a, buf[:size])
		a.Write([]byte("x"))
		io.ReadFull(app, buf[:1])
		sum += int64(size)
		if i == 3 {
			continue // enough was heard
		}
		if got := <-handed; got != sum {
			t.Errorf("reply %d: told of %d bytes handed to the connection, want %d", i, got, sum)
		}
	}
	a.(*net.TCPConn).CloseWrite()
	app.CloseWrite()
	<-result
	if calls != 3 {
		t.Errorf("told of %d replies after enough was heard at the third", calls)
	}
}
