package quic

import (
	"context"
	"io"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// A reset reaches an end that has sent its FIN and does not read, as over TCP.
func TestResetReachesStalledReceiver(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 10 s")
	}
	for name, size := range map[string]int{"window is full": 4 << 20, "reset is behind unread data": 400 << 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			served := make(chan error, 1)
			r := newRig(t, rigConfig{handler: func(ctx context.Context, in *hbone.Incoming) {
				st, err := in.Accept(nil)
				if err != nil {
					return
				}
				defer st.Close()
				if in.Authority == "server.resets:80" {
					io.ReadAll(st)
					st.SetWriteDeadline(time.Now().Add(time.Second))
					st.Write(make([]byte, size))
					st.Reset(http2.ErrCodeConnect)
					return
				}
				st.CloseWrite()
				<-ctx.Done()
				served <- context.Cause(ctx)
			}})
			fromServer, _, err := r.client.Open(t.Context(), &hbone.Request{Authority: "server.resets:80"})
			check(t, err)
			defer fromServer.Close()
			check(t, fromServer.CloseWrite())

			st := open(t, r.client)
			_, err = io.ReadAll(st)
			check(t, err)
			st.SetWriteDeadline(time.Now().Add(time.Second))
			st.Write(make([]byte, size))
			time.Sleep(time.Second)
			st.Reset(http2.ErrCodeConnect)
			select {
			case err := <-served:
				wantReset(t, err, http2.ErrCodeConnect)
			case <-time.After(lastWordsWithin + 5*time.Second):
				t.Error("the server does not know of the reset")
			}
			eventually(t, "the client knows of the reset", func() bool { return fromServer.Broken() != nil })
			wantReset(t, fromServer.Broken(), http2.ErrCodeConnect)
		})
	}
}
