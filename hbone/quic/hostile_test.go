package quic

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/qpack"
	quicgo "github.com/quic-go/quic-go"
	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/memory"
)

// raw is a client that speaks HTTP/3 by hand.
func (r *rig) raw() *quicgo.Conn { return r.rawControl(emptySettings) }

// rawControl is raw with control on its control stream.
func (r *rig) rawControl(control []byte) *quicgo.Conn {
	r.t.Helper()
	return r.rawAt(r.listener.Addr(), control)
}

// rawAt is rawControl by way of addr.
func (r *rig) rawAt(addr net.Addr, control []byte) *quicgo.Conn {
	r.t.Helper()
	q, err := quicgo.DialAddr(context.Background(), addr.String(), r.clientTLS(), &quicgo.Config{MaxIncomingUniStreams: 10})
	check(r.t, err)
	ctrl, err := q.OpenUniStream()
	check(r.t, err)
	ctrl.Write(control)
	r.t.Cleanup(func() { q.CloseWithError(codeNoError, "") })
	return q
}

// serves checks that other clients are served.
func (r *rig) serves() {
	r.t.Helper()
	started := time.Now()
	st := open(r.t, r.client)
	st.Write([]byte("x"))
	st.CloseWrite()
	if b, err := io.ReadAll(st); err != nil || len(b) != 1 {
		r.t.Errorf("another client: %q, %v", b, err)
	}
	st.Close()
	if d := time.Since(started); d > 5*time.Second {
		r.t.Errorf("another client waited %v", d)
	}
}

func TestUnfinishedHandshakesAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	r := newRig(t, rigConfig{})
	st := open(t, r.client)
	st.Close()
	cfg := r.clientTLS()
	const clients, workers = 900, 10
	most := 0
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			tr := &quicgo.Transport{Conn: deaf{udp(t)}}
			defer tr.Close()
			pace := time.NewTicker(60 * time.Millisecond) // 167/s of all: 800 would be unfinished without a bound
			defer pace.Stop()
			for range clients / workers {
				<-pace.C
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
				tr.Dial(ctx, r.listener.Addr(), cfg, nil)
				cancel()
				n := r.listener.Handshakes()
				mu.Lock()
				most = max(most, n)
				mu.Unlock()
			}
		})
	}
	for range 5 {
		time.Sleep(50 * time.Millisecond)
		r.serves()
		s := r.dial(hbone.DefaultConfig())
		open(t, s).Close()
		s.Close(nil)
	}
	wg.Wait()
	t.Logf("at most %d handshakes were unfinished", most)
	if most > 1024/8+workers {
		t.Errorf("%d unfinished handshakes, want about %d: from there on clients have to prove their address", most, 1024/8)
	}
}

// deaf drops what it receives.
type deaf struct{ net.PacketConn }

func (d deaf) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		if _, _, err := d.PacketConn.ReadFrom(p); err != nil {
			return 0, nil, err
		}
	}
}

// A request that is malformed or too large costs neither the connection nor other requests.
func TestServerRefusesBadRequest(t *testing.T) {
	r := newRig(t, rigConfig{})
	q := r.raw()
	method := qpack.HeaderField{Name: ":method", Value: "CONNECT"}
	authority := qpack.HeaderField{Name: ":authority", Value: "app.default:80"}
	path := qpack.HeaderField{Name: ":path", Value: "/"}
	many := bytes.Repeat([]byte{0xc0 | 17}, 60<<10) // :method GET of the static table, or as good as
	var long bytes.Buffer
	enc := qpack.NewEncoder(&long)
	enc.WriteField(method)
	enc.WriteField(authority)
	for range 3000 {
		enc.WriteField(qpack.HeaderField{Name: "a", Value: "b"})
	}
	for _, c := range []struct {
		name   string
		b      []byte
		status int                    // of the response
		code   quicgo.StreamErrorCode // of the reset without one
	}{
		{"frame of 1 MiB", appendFrame(nil, frameHeaders, make([]byte, 1<<20)...), 431, 0},
		{"many fields", appendFrame(nil, frameHeaders, append([]byte{0, 0}, many...)...), 0, codeMessage},
		{"list over 64 KiB", appendFrame(nil, frameHeaders, long.Bytes()...), 431, 0},
		{"not CONNECT", block(nil, qpack.HeaderField{Name: ":method", Value: "GET"}, authority), 400, 0},
		{"upper case", requestBlock("app.default:80", hbone.Header{"Upper": "x"}), 0, codeMessage},
		{"bad authority", requestBlock("app.default", nil), 400, 0},
		{"path for authority", block(nil, method, path), 0, codeMessage},
		{"path beside authority", block(nil, method, authority, path), 0, codeMessage},
		{"te: gzip", requestBlock("app.default:80", hbone.Header{"te": "gzip"}), 0, codeMessage},
		{"te: trailers", requestBlock("app.default:80", hbone.Header{"te": "trailers"}), 200, 0},
		{"no HEADERS", nil, 0, codeRequestIncomplete},
	} {
		t.Run(c.name, func(t *testing.T) {
			qs, err := q.OpenStreamSync(t.Context())
			check(t, err)
			go func() {
				qs.Write(c.b)
				qs.Close()
			}()
			qs.SetReadDeadline(time.Now().Add(5 * time.Second))
			sec, err := newFrames(qs).section()
			var reset *quicgo.StreamError
			switch {
			case c.status > 0 && err == nil && sec.status() == c.status:
			case c.status == 0 && errors.As(err, &reset) && reset.ErrorCode == c.code:
			default:
				t.Errorf("got %v, %v; want status %d or reset with %#x", sec.pseudo, err, c.status, c.code)
			}
			if q.Context().Err() != nil {
				t.Fatalf("the connection has ended: %v", context.Cause(q.Context()))
			}
		})
	}
	r.serves()
}

// A client that opens and resets streams as fast as it can is cut off.
func TestStreamFloodIsBounded(t *testing.T) {
	r := newRig(t, rigConfig{handler: func(ctx context.Context, in *hbone.Incoming) {
		if in.Authority == "app.default:80" {
			echoOn(in)
			return
		}
		<-ctx.Done()
	}})
	open(t, r.client).Close()
	q := r.raw()
	before := runtime.NumGoroutine()
	most, opened := 0, 0
	for range 100_000 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		qs, err := q.OpenStreamSync(ctx)
		cancel()
		if err != nil {
			break
		}
		opened++
		if _, err := qs.Write(requestBlock("flood.default:80", nil)); err != nil {
			break
		}
		qs.CancelWrite(codeRequestCancelled)
		qs.CancelRead(codeRequestCancelled)
		if opened%500 == 0 {
			most = max(most, runtime.NumGoroutine()-before)
			r.serves()
		}
	}
	t.Logf("%d streams were opened, %d goroutines more at most; the connection: %v", opened, most, context.Cause(q.Context()))
	if most > 5*200 {
		t.Errorf("%d goroutines for 200 streams", most)
	}
	r.serves()
}

// A client that opens streams and sends nothing has as many as are allowed, for a while.
func TestSilentStreamsEnd(t *testing.T) {
	r := newRig(t, rigConfig{})
	q := r.raw()
	qs, err := q.OpenStreamSync(t.Context())
	check(t, err)
	qs.Write([]byte{frameHeaders})
	qs.SetReadDeadline(time.Now().Add(headersWithin + 5*time.Second))
	if _, err := qs.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want that the stream is reset", err)
	}
	r.serves()
}

// Clients that do not read what they ask for, and whose uploads are not read, are bounded by the
// budget: their largest streams are reset.
func TestUnreadStreamsAreBoundedByMemory(t *testing.T) {
	b := memory.NewBudget(5 << 20)
	r := newRig(t, rigConfig{listen: ListenConfig{Memory: Memory{Budget: b}}, server: hbone.Config{Memory: b}, handler: func(ctx context.Context, in *hbone.Incoming) {
		if in.Authority == "app.default:80" {
			echoOn(in)
			return
		}
		if st, err := in.Accept(nil); err == nil {
			<-ctx.Done()
			st.Close()
		}
	}})
	other := r.dial(hbone.DefaultConfig())
	defer func() { other.Close(nil); <-other.Closed() }()
	open(t, other).Close()
	var wg sync.WaitGroup
	var reset atomic.Int64
	for range 60 {
		st, _, err := r.client.Open(t.Context(), &hbone.Request{Authority: "stalls:80"})
		check(t, err)
		wg.Go(func() {
			defer st.Reset(http2.ErrCodeCancel) // Close would deliver what was written
			st.SetWriteDeadline(time.Now().Add(3 * time.Second))
			_, err := st.Write(make([]byte, 8<<20))
			var e *hbone.ResetError
			if errors.As(err, &e) && e.Code == http2.ErrCodeEnhanceYourCalm {
				reset.Add(1)
			}
		})
	}
	most := int64(0)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		most = max(most, b.Used())
		st := open(t, other)
		st.Write([]byte("x"))
		st.CloseWrite()
		if got, err := io.ReadAll(st); err != nil || len(got) != 1 {
			t.Fatalf("another stream: %q, %v", got, err)
		}
		st.Close()
	}
	wg.Wait()
	t.Logf("%d KiB were used at most, %d of 60 streams were reset", most>>10, reset.Load())
	if most > b.Size() || reset.Load() == 0 || reset.Load() == 60 {
		t.Errorf("%d bytes of %d, %d streams reset", most, b.Size(), reset.Load())
	}
	eventually(t, "nothing is used", func() bool { r.client.Close(nil); other.Close(nil); return b.Used() == 0 })
}

// A request with more fields than the session accepts is refused for good: it is not to be tried elsewhere.
func TestServerRefusesFieldsBeyondSessionLimit(t *testing.T) {
	r := newRig(t, rigConfig{server: hbone.Config{MaxHeaderList: 1000}})
	q := r.raw()
	first, err := q.OpenStreamSync(t.Context())
	check(t, err)
	first.Write(requestBlock("app.default:80", nil))
	if sec, err := newFrames(first).section(); err != nil || sec.status() != 200 { // behind the SETTINGS of the session
		t.Fatalf("a CONNECT: %v, %v", sec.pseudo, err)
	}
	for range 20 {
		qs, err := q.OpenStreamSync(t.Context())
		check(t, err)
		qs.Write(requestBlock("app.default:80", hbone.Header{"a": strings.Repeat("b", 2000)}))
		qs.SetReadDeadline(time.Now().Add(5 * time.Second))
		if sec, err := newFrames(qs).section(); err != nil || sec.status() != 431 {
			t.Fatalf("got %v, %v; want status 431", sec.pseudo, err)
		}
	}
}
