package hbone

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone/flow"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// startRaw starts a CONNECT and returns its HEADERS as the peer sees them.
func (p *rawPeer) startRaw(s *Session, req Request) (*Stream, rawFrame) {
	p.t.Helper()
	req.Authority = "app.default:80"
	st, err := s.Start(&req)
	check(p.t, err)
	return st, p.next("HEADERS", func(f rawFrame) bool { return f.Type == http2.FrameHeaders })
}

func TestWhatIsWrittenBeforeTheAnswerTravelsBehindTheRequest(t *testing.T) {
	p, s := rawServer(t, DefaultConfig())
	st, h := p.startRaw(s, Request{})
	_, err := st.Write([]byte("early"))
	check(t, err)
	if d := p.kind(http2.FrameData, h.StreamID); string(d.data) != "early" {
		t.Errorf("DATA %q before the answer, want early", d.data)
	}
	if st.Responded() {
		t.Error("answered, and nobody has")
	}
	p.headers(h.StreamID, false, ":status", "200", header.NameEndpoint, "00000000000000aa")
	answer, err := st.AwaitResponse(t.Context())
	check(t, err)
	if answer.Endpoint() != 0xaa {
		t.Errorf("endpoint %x, want aa", answer.Endpoint())
	}
	st.Close()
}

func TestARefusalIsAnAnswerWhateverWasWritten(t *testing.T) {
	p, s := rawServer(t, DefaultConfig())
	st, h := p.startRaw(s, Request{})
	st.Write([]byte("early"))
	p.kind(http2.FrameData, h.StreamID)
	p.headers(h.StreamID, true, ":status", "503")
	_, err := st.AwaitResponse(t.Context())
	var status *StatusError
	if !errors.As(err, &status) || status.Status != 503 {
		t.Errorf("got %v, want status 503", err)
	}
	if _, err := st.Write([]byte("more")); err == nil {
		t.Error("a refused stream takes more")
	}
}

// An unanswered request may be repeated only if nothing of an application can
// have been passed on.
func TestADeathBeforeTheAnswerIsRetryableOnlyIfNothingWasSaid(t *testing.T) {
	refuse := func(p *rawPeer, id uint32) { p.fr.WriteRSTStream(id, http2.ErrCodeRefusedStream) }
	goAway := func(p *rawPeer, _ uint32) { p.fr.WriteGoAway(0, http2.ErrCodeNo, nil) }
	die := func(p *rawPeer, _ uint32) { p.c.Close() }
	for _, c := range []struct {
		name      string
		req       Request
		say       bool
		end       func(*rawPeer, uint32)
		retryable bool
	}{
		{"silent, session dies", Request{}, false, die, true},
		{"said, session dies", Request{}, true, die, false},
		{"harmless, session dies", Request{Replayable: true}, true, die, true},
		{"said, refused stream", Request{}, true, refuse, true},
		{"said, beyond GOAWAY", Request{}, true, goAway, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, s := rawServer(t, DefaultConfig())
			st, h := p.startRaw(s, c.req)
			if c.say {
				st.Write([]byte("x"))
				p.kind(http2.FrameData, h.StreamID)
			}
			c.end(p, h.StreamID)
			if _, err := st.AwaitResponse(t.Context()); err == nil || errors.Is(err, ErrRetryable) != c.retryable {
				t.Errorf("%v: retryable %v, want %v", err, !c.retryable, c.retryable)
			}
		})
	}
}

func TestAClientDoesNotWaitForSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := simnet.Pair(simnet.Options{})
		p := newRawPeer(t, a)
		p.pongs = false
		s, err := StartClient(plainTransport{b}, DefaultConfig())
		check(t, err)
		a.Read(make([]byte, len(http2.ClientPreface)))
		go p.read()
		st, h := p.startRaw(s, Request{})
		st.Write(make([]byte, 20<<10))
		first := p.kind(http2.FrameData, h.StreamID)
		if first.Length != wire.MinMaxFrame {
			t.Errorf("a frame of %d bytes before the peer said what it takes, want %d", first.Length, wire.MinMaxFrame)
		}
		begun := time.Now()
		_, err = st.AwaitResponse(t.Context())
		if took := time.Since(begun); !errors.Is(err, ErrSettingsTimeout) || took != 5*time.Second {
			t.Errorf("%v after %v, want ErrSettingsTimeout after 5s", err, took)
		}
		a.Close()
		<-s.life.transportClosed
	})
}

func TestWatchHearsOfTheAnswerBytesAndTheEnd(t *testing.T) {
	p, s := rawServer(t, DefaultConfig())
	st, h := p.startRaw(s, Request{})
	events := make(chan struct{}, 16)
	st.Watch(func() { events <- struct{}{} })
	if ready, err := st.Ready(); ready || err != nil {
		t.Errorf("ready %v, %v before anything came", ready, err)
	}
	p.headers(h.StreamID, false, ":status", "200")
	<-events
	if !st.Responded() {
		t.Error("not answered")
	}
	p.fr.WriteData(h.StreamID, false, []byte("x"))
	<-events
	if ready, err := st.Ready(); !ready || err != nil {
		t.Errorf("ready %v, %v with a byte to read", ready, err)
	}
	st.Read(make([]byte, 1))
	p.fr.WriteRSTStream(h.StreamID, http2.ErrCodeConnect)
	<-events
	if ready, err := st.Ready(); ready || err == nil {
		t.Errorf("ready %v, %v after a reset", ready, err)
	}
	st.Watch(nil)
	st.Close()
}

func TestASilentPeerIsNotLively(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := rawServer(t, DefaultConfig())
		if !s.Lively() {
			t.Error("not lively after the handshake")
		}
		answered := func() {
			st, h := p.startRaw(s, Request{})
			time.Sleep(10 * time.Millisecond)
			p.headers(h.StreamID, true, ":status", "503")
			st.AwaitResponse(context.Background())
		}
		answered()
		time.Sleep(flow.ActiveFor) // pings keep it fresh for so long after its last stream
		if !s.Lively() {
			t.Error("not lively though it answers pings")
		}
		time.Sleep(time.Minute + 5*time.Second) // between two of the rare pings
		if s.Lively() {
			t.Error("lively long after the last word")
		}
		answered()
		if !s.Lively() {
			t.Error("not lively after an answer")
		}
		st, _ := p.startRaw(s, Request{})
		time.Sleep(flow.LateAtLeast + 10*time.Millisecond)
		if s.Lively() {
			t.Error("lively though an answer is overdue")
		}
		st.Reset(http2.ErrCodeCancel)
		if s.Lively() {
			t.Error("lively though the last request waited in vain")
		}
		answered()
		if !s.Lively() {
			t.Error("not lively after an answer that followed a miss")
		}
	})
}

// nested is a session inside a stream of another one.
func nested(t *testing.T) (outer, inner *Session, gateway *Session) {
	t.Helper()
	r := newRig(t, rigConfig{handler: func(_ context.Context, in *Incoming) {
		st, err := in.Accept(nil)
		if err != nil {
			return
		}
		_, server := testTLS()
		tr, err := ServerTLS(context.Background(), st, server)
		if err != nil {
			return
		}
		NewServer(tr, DefaultConfig(), echoHandler).Serve(context.Background())
	}})
	client, _ := testTLS()
	tr, err := ClientTLS(t.Context(), open(t, r.client), client)
	check(t, err)
	inner, err = NewClient(t.Context(), tr, DefaultConfig())
	check(t, err)
	return r.client, inner, r.server
}

func TestAKeptInnerSessionDoesNotHoldUpTheDrainOfItsCarrier(t *testing.T) {
	outer, inner, gateway := nested(t)
	if inner.Base() != outer || outer.Base() != outer {
		t.Error("Base is not the session on the connection")
	}
	busy := open(t, inner)
	drained := make(chan error, 1)
	go func() { drained <- gateway.Drain(context.Background()) }()
	eventually(t, "the inner session takes no new stream", inner.retired)
	if _, err := busy.Write([]byte("x")); err != nil {
		t.Errorf("a stream under way: %v", err)
	}
	select {
	case err := <-drained:
		t.Errorf("drained (%v) under an open stream", err)
	default:
	}
	endStream(busy)
	check(t, <-drained)
}

// What one inner session asks in vain makes all of them on that connection wait
// for their answers.
func TestInnerSessionsShareTheDoubtAboutTheirConnection(t *testing.T) {
	outer, inner, _ := nested(t)
	endStream(open(t, inner))
	if !inner.Lively() || !outer.Lively() {
		t.Fatal("not lively after an answer")
	}
	outer.mu.Lock()
	asked := outer.alive.SilentSince
	outer.mu.Unlock()
	if !asked.IsZero() {
		t.Error("an answer inside leaves the connection in doubt")
	}
	outer.mu.Lock()
	outer.alive.SilentSince = time.Now().Add(-time.Second) // as a sibling's question would
	outer.mu.Unlock()
	if inner.Lively() {
		t.Error("lively though the connection owes an answer")
	}
	endStream(open(t, inner))
	if !inner.Lively() {
		t.Error("not lively after the answer")
	}
}

func TestAnInnerSessionEndsWithItsCarrier(t *testing.T) {
	outer, inner, _ := nested(t)
	st := open(t, inner)
	outer.Close(nil)
	if _, err := st.Read(make([]byte, 1)); err == nil {
		t.Error("a stream outlives the connection")
	}
	<-inner.Closed() // Done comes before it has left the list
	outer.mu.Lock()
	left := len(outer.life.children)
	outer.mu.Unlock()
	if left != 0 {
		t.Errorf("%d sessions still on the parent's list", left)
	}
}

// A write that the kernel refuses, because the peer is gone, has said nothing.
func TestWhatCouldNotBeSentIsRetryable(t *testing.T) {
	for range 20 {
		var far net.Conn
		r := newRig(t, rigConfig{pair: func(t testing.TB) (net.Conn, net.Conn) {
			a, b := tcpPair(t)
			far = b
			return a, b
		}})
		endStream(open(t, r.client))
		far.(*net.TCPConn).SetLinger(0)
		far.Close() // the reset is here when Close returns
		st, err := r.client.Start(&Request{Authority: "app.default:80"})
		if err == nil {
			st.Write([]byte("early"))
			_, err = st.AwaitResponse(t.Context())
		}
		if !errors.Is(err, ErrRetryable) {
			t.Fatalf("%v is not retryable", err)
		}
	}
}
