package quic

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"
	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
)

func TestConnectAccepted(t *testing.T) {
	r := newRig(t, rigConfig{handler: func(_ context.Context, in *hbone.Incoming) {
		st, err := in.Accept(hbone.Header{header.NameEndpoint: "0000000000000007", "x": in.Header.Get("baggage") + " to " + in.Authority})
		if err == nil {
			st.Close()
		}
	}})
	st, resp, err := r.client.Open(t.Context(), &hbone.Request{Authority: "app.default:80", Header: hbone.Header{"baggage": "k=v"}})
	check(t, err)
	if got := resp.Header.Get("x"); got != "k=v to app.default:80" || resp.Endpoint() != 7 {
		t.Errorf("response headers: %v", resp.Header)
	}
	if _, err := st.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read: %v, want EOF", err)
	}
	st.Close()
	if got := r.client.Peer().ID; got != serverID {
		t.Errorf("client sees peer %v", got)
	}
	if s := r.server(0); s.Peer().ID != clientID || s.Peer().NotAfter.IsZero() {
		t.Errorf("server sees peer %v", s.Peer())
	}
	if state, ok := r.client.TLS(); !ok || state.NegotiatedProtocol != hbone.ReplicaProtocol("a") {
		t.Errorf("protocol %q, want that of the replica", state.NegotiatedProtocol)
	}
}

func TestConnectRefused(t *testing.T) {
	r := newRig(t, rigConfig{handler: func(_ context.Context, in *hbone.Incoming) {
		in.Refuse(503, hbone.Header{header.NameReason: string(header.ReasonNoEndpoint)})
	}})
	for range 20 {
		st, err := r.client.Start(&hbone.Request{Authority: "app.default:80"})
		check(t, err)
		st.Write(make([]byte, 1000)) // nobody reads it
		_, err = st.AwaitResponse(t.Context())
		var status *hbone.StatusError
		if !errors.As(err, &status) || status.Status != 503 || status.Reason() != header.ReasonNoEndpoint {
			t.Fatalf("got %v, want 503 no_endpoint", err)
		}
	}
	eventually(t, "no stream is left", func() bool { return r.client.Streams() == 0 && r.server(0).Streams() == 0 })
}

func TestEarlyDataPrecedesResponse(t *testing.T) {
	const size = 200 << 10
	r := newRig(t, rigConfig{handler: func(ctx context.Context, in *hbone.Incoming) {
		for in.Unread() < size && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		echoOn(in)
	}})
	st, err := r.client.Start(&hbone.Request{Authority: "app.default:80"})
	check(t, err)
	data := bytes.Repeat([]byte("hello"), size/5)
	go func() { st.Write(data); st.CloseWrite() }()
	_, err = st.AwaitResponse(t.Context())
	check(t, err)
	got, err := io.ReadAll(st)
	check(t, err)
	if !bytes.Equal(got, data) {
		t.Errorf("got %d bytes back, want %d", len(got), len(data))
	}
	st.Close()
}

func echoOn(in *hbone.Incoming) { echo(context.Background(), in) }

func TestHalfCloseBothWays(t *testing.T) {
	for _, first := range []string{"client", "server"} {
		t.Run(first, func(t *testing.T) {
			r := newRig(t, rigConfig{handler: func(_ context.Context, in *hbone.Incoming) {
				st, err := in.Accept(nil)
				if err != nil {
					return
				}
				if first == "server" {
					st.Write([]byte("done"))
					st.CloseWrite()
				}
				b, err := io.ReadAll(st)
				if err == nil && first == "client" {
					st.Write(b)
					st.CloseWrite()
				}
				st.Close()
			}})
			st := open(t, r.client)
			if first == "server" {
				if b, err := io.ReadAll(st); err != nil || string(b) != "done" {
					t.Fatalf("got %q, %v", b, err)
				}
				time.Sleep(20 * time.Millisecond)
			}
			_, err := st.Write([]byte("still there"))
			check(t, err)
			check(t, st.CloseWrite())
			b, err := io.ReadAll(st)
			if err != nil || first == "client" && string(b) != "still there" {
				t.Fatalf("got %q, %v", b, err)
			}
			st.Close()
			eventually(t, "no stream is left", func() bool { return r.client.Streams() == 0 && r.server(0).Streams() == 0 })
		})
	}
}

// What was sent before a reset arrives, and the code with it.
func TestResetArrivesBehindData(t *testing.T) {
	data := make([]byte, 100<<10)
	got := make(chan error, 1)
	r := newRig(t, rigConfig{handler: func(_ context.Context, in *hbone.Incoming) {
		st, err := in.Accept(nil)
		if err != nil {
			return
		}
		if in.Authority == "server.resets:80" {
			st.Write(data)
			st.ResetBehind(http2.ErrCodeConnect)
			return
		}
		b, err := io.ReadAll(st)
		if len(b) != len(data) {
			err = errors.New("data is lost")
		}
		got <- err
		st.Close()
	}})
	for range 10 {
		st, _, err := r.client.Open(t.Context(), &hbone.Request{Authority: "server.resets:80"})
		check(t, err)
		b, err := io.ReadAll(st)
		wantReset(t, err, http2.ErrCodeConnect)
		if len(b) != len(data) {
			t.Fatalf("client got %d of %d bytes before the reset", len(b), len(data))
		}
		st.Close()

		st = open(t, r.client)
		_, err = st.Write(data)
		check(t, err)
		st.ResetBehind(http2.ErrCodeInternal)
		wantReset(t, <-got, http2.ErrCodeInternal)
	}
	eventually(t, "no stream is left", func() bool { return r.client.Streams() == 0 && r.server(0).Streams() == 0 })
}

// The SETTINGS of a client arrive behind its request, and behind the response. The reset does not overtake the data.
func TestResetWaitsForSettings(t *testing.T) {
	data := make([]byte, 100<<10)
	r := newRig(t, rigConfig{handler: func(_ context.Context, in *hbone.Incoming) {
		if st, err := in.Accept(nil); err == nil {
			st.Write(data)
			st.ResetBehind(http2.ErrCodeConnect)
		}
	}})
	q, err := quicgo.DialAddr(t.Context(), r.listener.Addr().String(), r.clientTLS(), &quicgo.Config{MaxIncomingUniStreams: 10})
	check(t, err)
	defer q.CloseWithError(codeNoError, "")
	qs, err := q.OpenStreamSync(t.Context())
	check(t, err)
	_, err = qs.Write(requestBlock("app.default:80", nil))
	check(t, err)
	time.Sleep(50 * time.Millisecond)
	ctrl, err := q.OpenUniStream()
	check(t, err)
	settings := quicvarint.Append(quicvarint.Append(nil, settingOurs), 1)
	_, err = ctrl.Write(appendFrame([]byte{streamControl}, frameSettings, settings...))
	check(t, err)
	f := newFrames(qs)
	kind, err := f.next()
	if err != nil || kind != frameHeaders {
		t.Fatalf("frame %#x, %v; want HEADERS", kind, err)
	}
	check(t, f.skip())
	got := 0
	for err = f.data(); err == nil; err = f.data() {
		n := 0
		n, err = f.read(make([]byte, 1<<15))
		if got += n; err != nil {
			break
		}
	}
	if code, reset := cancelled(err); got != len(data) || !reset || code == 0 {
		t.Errorf("%d of %d bytes, then %v; want all, and a reset", got, len(data), err)
	}
}

func wantReset(t testing.TB, err error, code http2.ErrCode) {
	t.Helper()
	var reset *hbone.ResetError
	if !errors.As(err, &reset) || reset.Code != code || !reset.Remote {
		t.Fatalf("got %v, want reset by peer: %v", err, code)
	}
}

// A reset of a CONNECT without a response ends its handler.
func TestResetBeforeResponseCancelsHandler(t *testing.T) {
	ended := make(chan error, 1)
	r := newRig(t, rigConfig{handler: func(ctx context.Context, in *hbone.Incoming) {
		<-ctx.Done()
		ended <- context.Cause(ctx)
	}})
	st, err := r.client.Start(&hbone.Request{Authority: "app.default:80"})
	check(t, err)
	go st.Write(make([]byte, 8<<20)) // more than all windows take
	time.Sleep(50 * time.Millisecond)
	st.Reset(http2.ErrCodeCancel)
	select {
	case err := <-ended:
		wantReset(t, err, http2.ErrCodeCancel)
	case <-time.After(5 * time.Second):
		t.Fatal("the handler goes on")
	}
}

// A peer that leaves behind its end (RST_STREAM(CANCEL) behind END_STREAM) has left in order.
func TestPeerLeavesBehindItsEnd(t *testing.T) {
	left := make(chan error, 1)
	r := newRig(t, rigConfig{handler: func(_ context.Context, in *hbone.Incoming) {
		st, err := in.Accept(nil)
		if err != nil {
			return
		}
		io.ReadAll(st)
		left <- st.AwaitReset()
		st.Close()
	}})
	st := open(t, r.client)
	st.Write([]byte("x"))
	st.Close() // END_STREAM, and reads no more
	select {
	case err := <-left:
		wantReset(t, err, http2.ErrCodeCancel)
	case <-time.After(5 * time.Second):
		t.Fatal("the server has not learned that the client reads no more")
	}
	eventually(t, "no stream is left", func() bool { return r.client.Streams() == 0 && r.server(0).Streams() == 0 })
}

func TestEchoOnManyStreams(t *testing.T) {
	r := newRig(t, rigConfig{})
	const streams, size = 64, 1 << 20
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			st, _, err := r.client.Open(t.Context(), &hbone.Request{Authority: "app.default:80"})
			if err != nil {
				t.Error(err)
				return
			}
			defer st.Close()
			data := make([]byte, size)
			rng := rand.NewChaCha8([32]byte{byte(i)})
			rng.Read(data)
			go func() { st.Write(data); st.CloseWrite() }()
			got, err := io.ReadAll(st)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("stream %d: %d bytes of %d, equal %v, %v", i, len(got), size, bytes.Equal(got, data), err)
			}
		})
	}
	wg.Wait()
	eventually(t, "no stream is left", func() bool { return r.client.Streams() == 0 && r.server(0).Streams() == 0 })
}

// A receiver that does not read stops its sender, and nobody else.
func TestStalledReaderStopsSender(t *testing.T) {
	r := newRig(t, rigConfig{handler: func(ctx context.Context, in *hbone.Incoming) {
		if in.Authority == "stalls:80" {
			if _, err := in.Accept(nil); err == nil {
				<-ctx.Done()
			}
			return
		}
		echoOn(in)
	}})
	st, _, err := r.client.Open(t.Context(), &hbone.Request{Authority: "stalls:80"})
	check(t, err)
	st.SetWriteDeadline(time.Now().Add(time.Second))
	taken := 0
	for {
		n, err := st.Write(make([]byte, 64<<10))
		taken += n
		if err != nil {
			break
		}
	}
	const most = 4 << 20
	t.Logf("%d KiB were taken", taken>>10)
	if taken > most {
		t.Errorf("%d bytes were taken for a reader that does not read, want at most %d", taken, most)
	}
	other := open(t, r.client)
	go func() { other.Write(make([]byte, 1<<20)); other.CloseWrite() }()
	if b, err := io.ReadAll(other); err != nil || len(b) != 1<<20 {
		t.Errorf("beside it: %d bytes, %v", len(b), err)
	}
	other.Close()
	st.Reset(http2.ErrCodeCancel)
	started := time.Now()
	eventually(t, "no stream is left", func() bool { return r.server(0).Streams() == 0 })
	if d := time.Since(started); d > 5*time.Second {
		t.Errorf("the reset took %v", d)
	}
}

func TestInterimAndWithdraw(t *testing.T) {
	r := newRig(t, rigConfig{handler: func(ctx context.Context, in *hbone.Incoming) {
		in.Inform(hbone.Header{header.NameEndpoint: "0000000000000009"})
		<-ctx.Done() // and neither accepts nor refuses
	}})
	st, err := r.client.Start(&hbone.Request{Authority: "app.default:80"})
	check(t, err)
	interim := st.AwaitInterim(t.Context())
	if interim == nil || interim.Status != 102 || interim.Endpoint() != 9 {
		t.Fatalf("informational response: %+v", interim)
	}
	st.Withdraw()
	_, err = st.AwaitResponse(t.Context())
	var status *hbone.StatusError
	if !errors.As(err, &status) || status.Reason() != header.ReasonWithdrawn {
		t.Fatalf("got %v, want withdrawn", err)
	}
}

// Draining lets open streams end, and tells the client to go elsewhere.
func TestDrain(t *testing.T) {
	r := newRig(t, rigConfig{})
	st := open(t, r.client)
	if r.client.Leaving() {
		t.Error("the client's session is leaving before GOAWAY")
	}
	drained := make(chan error, 1)
	go func() { drained <- r.server(0).Drain(t.Context()) }()
	eventually(t, "the client's session is leaving", r.client.Leaving)
	if !r.client.Availability(time.Now()).Retired || r.server(0).Leaving() {
		t.Error("the client's session is not retired, or the server's is leaving without GOAWAY of the client")
	}
	if _, _, err := r.client.Open(t.Context(), &hbone.Request{Authority: "app.default:80"}); !errors.Is(err, hbone.ErrRetryable) {
		t.Errorf("open while draining: %v, want retryable", err)
	}
	data := make([]byte, 1<<20)
	go func() { st.Write(data); st.CloseWrite() }()
	if b, err := io.ReadAll(st); err != nil || len(b) != len(data) {
		t.Errorf("the open stream: %d bytes, %v", len(b), err)
	}
	st.Close()
	check(t, <-drained)
	closed(t, "the client's session has ended", r.client.Closed())
	if err := <-r.served; err != nil {
		t.Errorf("served: %v", err)
	}
}

// What was written before an orderly end is delivered, and both ends are orderly.
func TestCloseDeliversEverything(t *testing.T) {
	got := make(chan int, 1)
	r := newRig(t, rigConfig{handler: func(_ context.Context, in *hbone.Incoming) {
		st, err := in.Accept(nil)
		if err != nil {
			return
		}
		st.CloseWrite()
		b, _ := io.ReadAll(st)
		got <- len(b)
		st.Close()
	}})
	st := open(t, r.client)
	io.ReadAll(st)
	const size = 150 << 10
	st.Write(make([]byte, size))
	st.Close()
	r.client.CloseWhenIdle()
	if n := <-got; n != size {
		t.Errorf("%d of %d bytes arrived", n, size)
	}
	started := time.Now()
	closed(t, "the session is closed", r.client.Closed())
	if err := <-r.served; err != nil {
		t.Errorf("served: %v", err)
	}
	if d := time.Since(started); d > time.Second {
		t.Errorf("the end took %v", d)
	}
}

func TestDecline(t *testing.T) {
	r := newRig(t, rigConfig{decline: "too many sessions"})
	_, _, err := r.client.Open(t.Context(), &hbone.Request{Authority: "app.default:80"})
	var away *hbone.GoAwayError
	if !errors.As(err, &away) || away.Code != http2.ErrCodeEnhanceYourCalm || !errors.Is(err, hbone.ErrRetryable) {
		t.Errorf("got %v, want GOAWAY(ENHANCE_YOUR_CALM), retryable", err)
	}
}

// The end of a session with open streams is a loss to its peer.
func TestClosedWithOpenStreams(t *testing.T) {
	r := newRig(t, rigConfig{})
	st := open(t, r.client)
	st.Write([]byte("x"))
	st.Read(make([]byte, 1))
	r.server(0).Close(errors.New("over"))
	if _, err := st.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("read: %v, want an error", err)
	}
	closed(t, "the client's session has ended", r.client.Done())
}

// A client may have as many CONNECTs open as the listener allows, above the default of a session.
func TestListenerBoundsStreams(t *testing.T) {
	const most = 220
	r := newRig(t, rigConfig{listen: ListenConfig{MaxStreams: most}, server: hbone.Config{MaxStreams: most}})
	q := r.raw()
	for i := range most {
		qs, err := q.OpenStreamSync(t.Context())
		check(t, err)
		qs.Write(requestBlock("app.default:80", nil))
		qs.SetReadDeadline(time.Now().Add(10 * time.Second))
		if sec, err := newFrames(qs).section(); err != nil || sec.status() != 200 {
			t.Fatalf("CONNECT %d: %v, %v", i+1, sec.pseudo, err)
		}
	}
	var full *quicgo.StreamLimitReachedError
	if _, err := q.OpenStream(); !errors.As(err, &full) {
		t.Errorf("CONNECT %d: %v, want %T", most+1, err, full)
	}
}

// A resumed connection sends no request before the handshake is complete, since a repeated CONNECT would dial again.
func TestListenerRejects0RTT(t *testing.T) {
	r := newRig(t, rigConfig{})
	cfg := r.clientTLS()
	cfg.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	for i := range 2 {
		q, err := quicgo.DialAddrEarly(t.Context(), r.listener.Addr().String(), cfg, nil)
		check(t, err)
		qs, err := q.OpenStreamSync(t.Context())
		check(t, err)
		qs.Write(requestBlock("app.default:80", nil))
		<-q.HandshakeComplete()
		if q.ConnectionState().Used0RTT {
			t.Errorf("connection %d used 0-RTT", i+1)
		}
		sec, err := newFrames(qs).section()
		if err != nil || sec.status() != 200 {
			t.Errorf("CONNECT of connection %d: %v, %v", i+1, sec.pseudo, err)
		}
		q.CloseWithError(codeNoError, "")
	}
}
