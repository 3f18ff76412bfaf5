package hbone

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/memory"
	"golang.org/x/net/http2"
)

func settingsOf(f rawFrame) map[http2.SettingID]uint32 {
	m := make(map[http2.SettingID]uint32)
	for _, s := range f.settings {
		m[s.ID] = s.Val
	}
	return m
}

func TestClientPrefaceIsThatOfAStockPeer(t *testing.T) {
	p, _ := rawServer(t, DefaultConfig())
	f := p.kind(http2.FrameSettings, 0)
	var ids []http2.SettingID
	for _, s := range f.settings {
		ids = append(ids, s.ID)
	}
	want := []http2.SettingID{http2.SettingEnablePush, http2.SettingInitialWindowSize, http2.SettingMaxFrameSize, http2.SettingMaxHeaderListSize}
	if !slices.Equal(ids, want) {
		t.Errorf("settings %v, want %v in this order", ids, want)
	}
	m := settingsOf(f)
	if m[http2.SettingEnablePush] != 0 || m[http2.SettingInitialWindowSize] != 1<<20 || m[http2.SettingMaxFrameSize] < 65536 || m[http2.SettingMaxHeaderListSize] != 16384 {
		t.Errorf("settings %v", m)
	}
	if f := p.kind(http2.FrameWindowUpdate, 0); f.n != 16711681 {
		t.Errorf("connection window raised by %d, want 16711681", f.n)
	}
	p.next("SETTINGS ack", func(f rawFrame) bool { return f.Type == http2.FrameSettings && f.Flags.Has(http2.FlagSettingsAck) })
}

func TestServerPrefaceAllowsAStockClient(t *testing.T) {
	p, _ := rawClient(t, DefaultConfig(), nil)
	m := settingsOf(p.kind(http2.FrameSettings, 0))
	if m[http2.SettingMaxConcurrentStreams] != 200 || m[http2.SettingInitialWindowSize] != 1<<20 || m[http2.SettingMaxFrameSize] < 65536 || m[http2.SettingMaxHeaderListSize] != 65536 {
		t.Errorf("settings %v", m)
	}
	if _, ok := m[http2.SettingEnablePush]; ok {
		t.Errorf("server sent ENABLE_PUSH")
	}
	if f := p.kind(http2.FrameWindowUpdate, 0); f.n != 16711681 {
		t.Errorf("connection window raised by %d, want 16711681", f.n)
	}
}

func TestConnectRequestOnTheWire(t *testing.T) {
	p, s := rawServer(t, DefaultConfig())
	ch := openAsync(s, Header{header.NameBaggage: "k8s.namespace.name=a", header.NameForwarded: `for="127.0.0.1:9"`, header.NameTraceparent: "x", header.NameForwardedNetwork: "east"})
	f := p.kind(http2.FrameHeaders, 1)
	if f.Flags.Has(http2.FlagHeadersEndStream) || !f.Flags.Has(http2.FlagHeadersEndHeaders) {
		t.Errorf("flags %v", f.Flags)
	}
	var pseudo []string
	for _, hf := range f.fields {
		if hf.IsPseudo() {
			pseudo = append(pseudo, hf.Name+"="+hf.Value)
		}
	}
	if want := []string{":method=CONNECT", ":authority=app.default:80"}; !slices.Equal(pseudo, want) {
		t.Errorf("pseudo headers %v, want %v", pseudo, want)
	}
	if f.get("baggage") != "k8s.namespace.name=a" || f.get("forwarded") != `for="127.0.0.1:9"` || f.get("traceparent") != "x" || f.get("x-forwarded-network") != "east" {
		t.Errorf("fields %v", f.fields)
	}
	p.headers(1, false, ":status", "200", "baggage", "k8s.namespace.name=b")
	o := <-ch
	check(t, o.err)
	if o.resp.Status != 200 || o.resp.Header.Get("baggage") != "k8s.namespace.name=b" {
		t.Errorf("answer %+v", o.resp)
	}
	o.st.CloseWrite()
	if f := p.kind(http2.FrameData, 1); f.Length != 0 || !f.Flags.Has(http2.FlagDataEndStream) {
		t.Errorf("half-close was %v, want an empty DATA with END_STREAM", f)
	}
	p.fr.WriteData(1, true, []byte("bye"))
	got, err := io.ReadAll(o.st)
	if string(got) != "bye" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	o.st.Close()
	p.sync(1) // both halves ended: no RST_STREAM
	if n := s.Streams(); n != 0 {
		t.Errorf("%d streams left", n)
	}
}

func TestAnswersOnTheWire(t *testing.T) {
	p, _ := rawClient(t, DefaultConfig(), func(ctx context.Context, in *Incoming) {
		switch in.Authority {
		case "ok:1":
			st, _ := in.Accept(Header{header.NameBaggage: "b"})
			<-ctx.Done()
			st.Close()
		case "no:1":
			in.Refuse(503, Header{header.NameReason: "refused"})
		}
	})
	for i, c := range []struct {
		name, status, reason string
		end                  bool
		fields               []string
	}{
		{"accepted", "200", "", false, []string{":method", "CONNECT", ":authority", "ok:1"}},
		{"refused", "503", "refused", true, []string{":method", "CONNECT", ":authority", "no:1"}},
		{"handler says nothing", "503", "", true, []string{":method", "CONNECT", ":authority", "[::1]:1"}},
		{"not CONNECT", "400", "bad_request", true, []string{":method", "GET", ":authority", "ok:1", ":scheme", "https", ":path", "/"}},
		{"scheme and path", "400", "bad_request", true, []string{":method", "CONNECT", ":scheme", "https", ":path", "/", ":authority", "ok:1"}},
		{"extended CONNECT", "400", "bad_request", true, []string{":method", "CONNECT", ":protocol", "websocket", ":authority", "ok:1"}},
		{"no authority", "400", "bad_authority", true, []string{":method", "CONNECT"}},
		{"no port", "400", "bad_authority", true, []string{":method", "CONNECT", ":authority", "ok"}},
		{"port zero", "400", "bad_authority", true, []string{":method", "CONNECT", ":authority", "ok:0"}},
		{"port too large", "400", "bad_authority", true, []string{":method", "CONNECT", ":authority", "ok:65536"}},
		{"user info", "400", "bad_authority", true, []string{":method", "CONNECT", ":authority", "a@ok:1"}},
	} {
		id := uint32(2*i + 1)
		p.headers(id, false, c.fields...)
		f := p.kind(http2.FrameHeaders, id)
		if f.get(":status") != c.status || f.get(header.NameReason) != c.reason || f.Flags.Has(http2.FlagHeadersEndStream) != c.end {
			t.Errorf("%s: %v, want status %s, reason %q, END_STREAM %v", c.name, f, c.status, c.reason, c.end)
		}
		if f.get("date") != "" {
			t.Errorf("%s: answer has a date", c.name)
		}
	}
}

// A stream that ends without a handler gives back its part of the memory budget.
func TestRefusedRequestsLeaveNoMemory(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Memory, cfg.Owner = memory.NewBudget(64<<20), "peer"
	p, _ := rawClient(t, cfg, nil)
	before := cfg.Memory.Uses()
	for id := uint32(1); id < 40; id += 2 {
		p.headers(id, true, ":method", "GET", ":authority", "ok:1", ":scheme", "https", ":path", "/")
		p.kind(http2.FrameHeaders, id)
	}
	p.sync(39)
	if n := cfg.Memory.Uses(); n != before {
		t.Errorf("%d uses are open after 20 refused requests, want %d as before", n, before)
	}
}

func TestEarlyCloseIsEndStreamAndCancel(t *testing.T) {
	p, s := rawServer(t, DefaultConfig())
	st, id := p.openRaw(s)
	st.Write([]byte("last words"))
	st.Close()
	got := ""
	p.next("END_STREAM", func(f rawFrame) bool {
		got += string(f.data)
		return f.Type == http2.FrameData && f.StreamID == id && f.Flags.Has(http2.FlagDataEndStream)
	})
	if f := p.kind(http2.FrameRSTStream, id); f.code != http2.ErrCodeCancel || got != "last words" {
		t.Errorf("closed with %v after %q, want CANCEL after the data", f.code, got)
	}
	p.sync(id)
}

func TestResetDropsWhatIsQueued(t *testing.T) {
	p, s := rawServer(t, DefaultConfig())
	st, id := p.openRaw(s)
	st.Reset(http2.ErrCodeConnect)
	if f := p.kind(http2.FrameRSTStream, id); f.code != http2.ErrCodeConnect {
		t.Errorf("reset with %v", f.code)
	}
	var re *ResetError
	if _, err := st.Write([]byte("x")); !errors.As(err, &re) || re.Remote {
		t.Errorf("write after reset: %v", err)
	}
	p.sync(id)
}

// §16: END_STREAM and RST_STREAM(CANCEL) behind it in one burst are a normal end,
// and provoke not one frame.
func TestResetBehindEndStreamIsANormalEnd(t *testing.T) {
	for _, code := range []http2.ErrCode{http2.ErrCodeCancel, http2.ErrCodeNo} {
		relayed := make(chan RelayResult, 1)
		p, s := rawClient(t, DefaultConfig(), func(ctx context.Context, in *Incoming) {
			a, b := tcpPair(t)
			go func() { // answers whatever it is told, and its FIN
				got, _ := io.ReadAll(b)
				b.Write(append([]byte("echo "), got...))
				b.Close()
			}()
			st, err := in.Accept(nil)
			if err != nil {
				relayed <- RelayResult{Err: err}
				return
			}
			relayed <- Relay(ctx, st, a)
		})
		p.connect(1)
		p.kind(http2.FrameHeaders, 1)
		inOneBurst(p, func(fr *http2.Framer) {
			fr.WriteData(1, false, []byte("one "))
			fr.WriteData(1, true, []byte("two"))
			fr.WriteRSTStream(1, code)
		})
		if res := <-relayed; res.Err != nil || res.ToConn != 7 {
			t.Errorf("%v: relay ended with %+v, want 7 bytes and no error", code, res)
		}
		p.sync(1)
		if n := s.Streams(); n != 0 {
			t.Errorf("%d streams left", n)
		}
	}
}

// inOneBurst sends several frames as one write.
func inOneBurst(p *rawPeer, write func(*http2.Framer)) {
	w := &onceWriter{}
	fr := http2.NewFramer(w, nil)
	fr.AllowIllegalWrites = true
	write(fr)
	p.c.Write(w.b)
}

type onceWriter struct{ b []byte }

func (w *onceWriter) Write(b []byte) (int, error) {
	w.b = append(w.b, b...)
	return len(b), nil
}

// §16: frames that wait in our queue when RST_STREAM arrives do not go out.
func TestNothingQueuedFollowsAPeersReset(t *testing.T) {
	streams := make(chan *Stream, 2)
	p, s := rawClient(t, DefaultConfig(), func(ctx context.Context, in *Incoming) {
		st, err := in.Accept(nil)
		if err != nil {
			return
		}
		streams <- st
		<-ctx.Done()
	})
	p.connect(1)
	p.kind(http2.FrameHeaders, 1)
	st := <-streams
	s.mu.Lock()
	s.send.busy = true // somebody else is writing
	s.mu.Unlock()
	for range 3 {
		st.Write([]byte("too late"))
	}
	st.CloseWrite()
	p.fr.WriteRSTStream(1, http2.ErrCodeCancel)
	eventually(t, "reset taken in", func() bool { return s.Streams() == 0 })
	if _, err := st.Write([]byte("x")); err == nil {
		t.Error("write after the peer's reset succeeded")
	}
	s.mu.Lock()
	s.send.busy = false
	s.kickLocked()
	s.mu.Unlock()
	p.sync(1)
}

func TestPeerResetIsAnError(t *testing.T) {
	p, s := rawServer(t, DefaultConfig())
	st, id := p.openRaw(s)
	p.fr.WriteData(id, false, []byte("half"))
	p.fr.WriteRSTStream(id, http2.ErrCodeConnect)
	got, err := io.ReadAll(st)
	var re *ResetError
	if !errors.As(err, &re) || !re.Remote || re.Code != http2.ErrCodeConnect || string(got) != "half" {
		t.Errorf("read %q, %v; want half and the peer's CONNECT_ERROR", got, err)
	}
	st.Close()
	p.sync(id)
}

func TestEndStreamRidesOnQueuedData(t *testing.T) {
	p, s := rawServer(t, DefaultConfig())
	st, id := p.openRaw(s)
	s.mu.Lock()
	s.send.busy = true
	s.mu.Unlock()
	st.Write([]byte("a"))
	st.Write([]byte("b"))
	st.CloseWrite()
	s.mu.Lock()
	s.send.busy = false
	s.kickLocked()
	s.mu.Unlock()
	p.kind(http2.FrameData, id)
	if f := p.kind(http2.FrameData, id); string(f.data) != "b" || !f.Flags.Has(http2.FlagDataEndStream) {
		t.Errorf("last frame %v %q, want b with END_STREAM", f, f.data)
	}
}

// The END_STREAM of a full batch waits for what is still at hand, and not longer:
// a peer that never pauses must not hold the end of a stream up.
func TestEndStreamWaitsForTheNextBatchOnly(t *testing.T) {
	st := &Stream{s: &Session{}}
	st.recv.cond.L = &st.recv.mu
	ended := func() bool { st.recv.mu.Lock(); defer st.recv.mu.Unlock(); return st.recv.ended }
	var b batch
	b.ended = append(b.ended, st)
	b.deliver(true)
	if ended() {
		t.Error("the end was delivered while more was at hand")
	}
	b.deliver(true)
	if !ended() {
		t.Error("the end waited for a second batch")
	}
}
