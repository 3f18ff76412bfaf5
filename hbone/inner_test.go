package hbone

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"golang.org/x/net/http2"
)

// innerPair is a client session inside a stream of another client session, and
// its peer.
func innerPair(t testing.TB, h Handler) (inner *Session, outer *rig) {
	t.Helper()
	clientTLS, serverTLS := testTLS()
	outer = newRig(t, rigConfig{handler: func(ctx context.Context, in *Incoming) {
		st, err := in.Accept(nil)
		if err != nil {
			return
		}
		if tr, err := ServerTLS(ctx, st, serverTLS); err == nil {
			NewServer(tr, DefaultConfig(), h).Serve(ctx)
		}
	}})
	tr, err := ClientTLS(t.Context(), open(t, outer.client), clientTLS)
	check(t, err)
	inner, err = NewClient(t.Context(), tr, DefaultConfig())
	check(t, err)
	t.Cleanup(func() { inner.Close(nil); <-inner.life.transportClosed })
	return inner, outer
}

// A full chunk of an inner stream is one DATA frame of the stream that carries
// it, however large the frames are that the inner peer accepts.
func TestInnerChunkFillsOneOuterFrame(t *testing.T) {
	clientTLS, serverTLS := testTLS()
	p, s := rawServer(t, DefaultConfig(),
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: 4 << 20}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20})
	p.fr.WriteWindowUpdate(0, 16<<20)
	st, id := p.openRaw(s)
	a, b := tcpPair(t)
	go ServerTLS(t.Context(), b, serverTLS)
	tr, err := ClientTLS(t.Context(), a, clientTLS)
	check(t, err)
	tr.rec.Conn, tr.rec.st = st, st // the handshake is over; from here on into the stream
	for _, max := range []int{wire.MinMaxFrame, wire.MaxMaxFrame} {
		f := getFrameBuf()
		check(t, tr.WriteBurst(f.layout(1, frameFront, innerPayload, max)))
		putFrameBuf(f)
		got := p.kind(http2.FrameData, id)
		if n := int(got.Length); n > maxPayload || n < maxPayload-frameFront {
			t.Errorf("inner frames of at most %d bytes: %d bytes in the first outer frame, want all of the burst and no more than %d", max, n, maxPayload)
		}
		p.sync(id) // and not one more
	}
	a.Close()
	st.Reset(http2.ErrCodeCancel)
}

// What a peer sends in pieces of any size reaches crypto/tls whole, and nothing
// of the parent's window is lost when the inner session ends.
func TestInnerSessionTakesRecordsFromTheStreamsQueue(t *testing.T) {
	inner, outer := innerPair(t, echoHandler)
	const seed = 11
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		st := open(t, inner)
		data := randomBytes(rng)
		go func() {
			for rest := data; len(rest) > 0; {
				n := min(len(rest), 1+rng.IntN(100_000))
				st.Write(rest[:n])
				rest = rest[n:]
			}
			st.CloseWrite()
		}()
		got, err := io.ReadAll(st)
		check(t, err)
		if !bytes.Equal(got, data) {
			t.Fatalf("seed %d: got %d bytes, want %d", seed, len(got), len(data))
		}
		st.Close()
	}
	inner.Close(nil)
	<-inner.life.transportClosed
	for _, s := range []*Session{outer.client, outer.server} {
		eventually(t, "outer stream gone", func() bool { return s.Streams() == 0 })
		if err := s.window.whole(); err != nil {
			t.Error(err)
		}
	}
}
