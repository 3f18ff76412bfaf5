package hbone

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
)

// Whoever asks what a relay moves hears of each byte of both directions, of what is sent
// to the connection before it can reply to that, and of its FIN, until they have heard
// enough.
func TestARelayShowsWhatItMoves(t *testing.T) {
	for name, enough := range map[string]int{"to the end": 100, "until enough was heard": 3} {
		t.Run(name, func(t *testing.T) {
			p := newProxied(t, rigConfig{})
			a, b := tcpPair(t)
			defer a.Close()
			st := open(t, p.r.client)
			var sent []byte
			sends, replies := 0, 0
			type reply struct{ p, sent []byte }
			heard := make(chan reply, 100)
			result := make(chan RelayResult, 1)
			go func() {
				result <- RelayWith(context.Background(), st, b, RelayOptions{
					OnSend: func(p []byte) bool {
						sent = append(sent, p...) // before its reply: the race detector sees both
						sends++
						return sends < enough
					},
					OnReply: func(p []byte) bool {
						heard <- reply{bytes.Clone(p), bytes.Clone(sent)}
						replies++
						return replies < enough
					},
				})
			}()
			app := (<-p.app).(*net.TCPConn)
			defer app.Close()
			buf := make([]byte, 16)
			var all []byte
			for i := range 5 {
				msg := bytes.Repeat([]byte{byte('a' + i)}, 3*i+1)
				app.Write(msg)
				io.ReadFull(a, buf[:len(msg)])
				a.Write(msg[:1])
				io.ReadFull(app, buf[:1])
				if i >= enough {
					continue
				}
				all = append(all, msg...)
				if got := <-heard; !bytes.Equal(got.p, msg[:1]) || !bytes.Equal(got.sent, all) {
					t.Errorf("reply %d: told of %q behind %q, want %q behind %q", i, got.p, got.sent, msg[:1], all)
				}
			}
			a.(*net.TCPConn).CloseWrite()
			app.CloseWrite()
			<-result
			if want := min(enough, 5); sends != want {
				t.Errorf("told of %d pieces sent, want %d", sends, want)
			}
			if want := min(enough, 6); replies != want {
				t.Errorf("told of %d replies and the FIN, want %d", replies, want)
			}
		})
	}
}
