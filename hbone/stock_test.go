package hbone

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"golang.org/x/net/http2"
)

// A transcript is the recording of a session with a stock peer: integration/interop
// makes them, testdata/stock has them.
type transcript []step

// step is one read of what the stock peer sent, or one write of ours.
type step struct {
	stock   bool
	preface bool
	frames  []spokenFrame
}

type spokenFrame struct {
	kind    http2.FrameType
	flags   http2.Flags
	id      uint32
	payload []byte
}

func (f spokenFrame) end() bool {
	return f.flags.Has(http2.FlagDataEndStream) && (f.kind == http2.FrameData || f.kind == http2.FrameHeaders)
}

// bytes are the step's as they were on the wire.
func (s step) bytes() []byte {
	var b bytes.Buffer
	if s.preface {
		b.WriteString(http2.ClientPreface)
	}
	fr := http2.NewFramer(&b, nil)
	fr.AllowIllegalWrites = true
	for _, f := range s.frames {
		fr.WriteRawFrame(f.kind, f.flags, f.id, f.payload)
	}
	return b.Bytes()
}

// of are the frames of one kind of one side.
func (s transcript) of(stock bool, kind http2.FrameType) (all []spokenFrame) {
	for _, st := range s {
		for _, f := range st.frames {
			if st.stock == stock && f.kind == kind {
				all = append(all, f)
			}
		}
	}
	return all
}

// data is what one side sent on a stream.
func (s transcript) data(stock bool, id uint32) (b []byte, ended bool) {
	for _, f := range s.of(stock, http2.FrameData) {
		if f.id == id {
			b = append(b, f.payload...)
			ended = ended || f.end()
		}
	}
	return b, ended
}

// streams are those on which the client sent HEADERS.
func (s transcript) streams(stockClient bool) (ids []uint32) {
	for _, f := range s.of(stockClient, http2.FrameHeaders) {
		ids = append(ids, f.id)
	}
	return ids
}

// reset reports whether the stock peer reset the stream.
func (s transcript) reset(id uint32) bool {
	return slices.ContainsFunc(s.of(true, http2.FrameRSTStream), func(f spokenFrame) bool { return f.id == id })
}

func readTranscript(t *testing.T, name string) (s transcript) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata/stock", name+".txt"))
	check(t, err)
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		switch {
		case strings.HasPrefix(line, "#"):
		case line == "stock" || line == "ours":
			s = append(s, step{stock: line == "stock"})
		case line == "PREFACE":
			s[len(s)-1].preface = true
		default:
			f, err := parseFrame(line)
			if err != nil {
				t.Fatalf("%s: line %d: %v", name, i+1, err)
			}
			s[len(s)-1].frames = append(s[len(s)-1].frames, f)
		}
	}
	return s
}

func parseFrame(line string) (f spokenFrame, err error) {
	part := strings.SplitN(line, " ", 4)
	if len(part) != 4 {
		return f, fmt.Errorf("%q: want type, flags, stream and payload", line)
	}
	for f.kind = 0; f.kind.String() != part[0]; f.kind++ {
		if f.kind > http2.FrameContinuation {
			return f, fmt.Errorf("%q is no type of frame", part[0])
		}
	}
	flags, err1 := strconv.ParseUint(part[1], 16, 8)
	id, err2 := strconv.ParseUint(part[2], 10, 31)
	f.flags, f.id = http2.Flags(flags), uint32(id)
	var err3 error
	switch {
	case part[3] == "-":
	case part[3][0] == '"':
		var text string
		text, err3 = strconv.Unquote(part[3])
		f.payload = []byte(text)
	default:
		f.payload, err3 = hex.DecodeString(part[3])
	}
	return f, errors.Join(err1, err2, err3)
}

// said is what a session under test has sent.
type said struct {
	headers, data, resets map[uint32]int // data in bytes
	ended                 map[uint32]bool
	goAways, pings        int
	pongs                 map[string]bool
}

func (p *rawPeer) said() said {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := said{headers: map[uint32]int{}, data: map[uint32]int{}, resets: map[uint32]int{}, ended: map[uint32]bool{}, pongs: map[string]bool{}}
	for _, f := range p.frames {
		switch f.Type {
		case http2.FrameHeaders:
			s.headers[f.StreamID]++
			s.ended[f.StreamID] = s.ended[f.StreamID] || f.Flags.Has(http2.FlagHeadersEndStream)
		case http2.FrameData:
			s.data[f.StreamID] += len(f.data)
			s.ended[f.StreamID] = s.ended[f.StreamID] || f.Flags.Has(http2.FlagDataEndStream)
		case http2.FrameRSTStream:
			s.resets[f.StreamID]++
		case http2.FrameGoAway:
			s.goAways++
		case http2.FramePing:
			if f.Flags.Has(http2.FlagPingAck) {
				s.pongs[string(f.data)] = true
			} else {
				s.pings++
			}
		}
	}
	return s
}

// until waits until the session under test has sent what ok looks for.
func (p *rawPeer) until(what string, ok func(said) bool) {
	p.t.Helper()
	eventually(p.t, what, func() bool { return ok(p.said()) })
}

// server is a server session under test that relays each stream to a pod of the
// test's own, as a gateway does and a node proxy.
type replayedServer struct {
	*rawPeer
	t    *testing.T
	s    *Session
	mu   sync.Mutex
	pods map[uint32]net.Conn
	got  map[uint32]chan []byte
	wg   sync.WaitGroup
}

func newReplayedServer(t *testing.T, cfg Config, throughGateway bool) *replayedServer {
	a, b := simnet.Pair(simnet.Options{Buffer: 8 << 20})
	cfg.PingEvery = -1
	r := &replayedServer{t: t, rawPeer: newRawPeer(t, a), pods: map[uint32]net.Conn{}, got: map[uint32]chan []byte{}}
	r.s = NewServer(plainTransport{b}, cfg, func(ctx context.Context, in *Incoming) {
		c, pod := tcpPair(t)
		got := make(chan []byte, 1)
		go func() {
			b, err := io.ReadAll(pod)
			if err != nil {
				b = nil
			}
			got <- b
		}()
		r.mu.Lock()
		r.pods[in.st.ID()], r.got[in.st.ID()] = pod, got
		r.mu.Unlock()
		st, err := in.Accept(nil)
		if err != nil {
			return
		}
		if throughGateway {
			st.EndAtEOF()
		}
		Relay(ctx, st, c)
	})
	r.pongs = false // they are in the transcript
	go r.rawPeer.read()
	r.wg.Go(func() { r.s.Serve(context.Background()) })
	t.Cleanup(func() {
		a.Close()
		r.s.Close(nil)
		for _, pod := range r.pods {
			pod.Close()
		}
		r.wg.Wait()
	})
	return r
}

// pod is the one that a stream is relayed to, and what it read until its FIN, nil
// after a reset.
func (r *replayedServer) pod(id uint32) (net.Conn, chan []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pods[id], r.got[id]
}

// play sends what the stock client sent, and lets the pods do what they did.
func (r *replayedServer) play(s transcript) {
	want := said{headers: map[uint32]int{}, data: map[uint32]int{}, ended: map[uint32]bool{}}
	for _, st := range s {
		if st.stock {
			r.c.Write(st.bytes())
			continue
		}
		for _, f := range st.frames {
			r.act(f, &want)
		}
	}
}

// act lets the pod of a frame's stream, or the session, do what made us send it.
func (r *replayedServer) act(f spokenFrame, want *said) {
	r.t.Helper()
	switch f.kind {
	case http2.FrameHeaders:
		r.until(fmt.Sprintf("an answer on stream %d", f.id), func(s said) bool { return s.headers[f.id] == 1 })

	case http2.FrameData:
		pod, _ := r.pod(f.id)
		want.data[f.id] += len(f.payload)
		pod.Write(f.payload)
		if f.end() {
			pod.(*net.TCPConn).CloseWrite()
		}
		r.until(fmt.Sprintf("%d bytes on stream %d, end %v", want.data[f.id], f.id, f.end()), func(s said) bool {
			return s.data[f.id] == want.data[f.id] && s.ended[f.id] == f.end()
		})
	case http2.FrameGoAway:
		if want.goAways++; want.goAways == 1 {
			r.wg.Go(func() { r.s.Drain(context.Background()) })
		}
		r.until(fmt.Sprintf("GOAWAY %d", want.goAways), func(s said) bool { return s.goAways >= want.goAways })
	}
}

// TestStockClientsAreServedAsRecorded replays what stock clients sent against a
// server session and its relay: as a gateway for outer sessions, as a node proxy
// for the others.
func TestStockClientsAreServedAsRecorded(t *testing.T) {
	for name, gateway := range map[string]bool{
		"client-single-client-first": false,
		"client-single-server-first": false,
		"client-outer-client-first":  true,
		"client-outer-server-first":  true,
		"client-pings":               false,
	} {
		t.Run(name, func(t *testing.T) {
			s := readTranscript(t, name)
			cfg := DefaultConfig()
			cfg.CancelEnds = gateway
			r := newReplayedServer(t, cfg, false)
			r.play(s)
			ids := s.streams(true)
			for _, id := range ids {
				r.delivered(s, id)
			}
			r.answersPings(s)
			for _, id := range ids {
				if r.said().resets[id] > 0 {
					t.Errorf("stream %d was reset by us", id)
				}
			}
			r.rawPeer.sync() // drops what was said so far
			r.podsSpeakLate(ids)
			r.rawPeer.sync(ids...)
			r.next(slices.Max(ids) + 2)
		})
	}
}

// delivered expects that the pod got what the client sent on a stream, and a FIN
// if that was ended or reset.
func (r *replayedServer) delivered(s transcript, id uint32) {
	r.t.Helper()
	want, ended := s.data(true, id)
	if !ended && !s.reset(id) {
		r.t.Fatalf("the recording does not end stream %d", id)
	}
	_, pod := r.pod(id)
	select {
	case got := <-pod:
		if !bytes.Equal(got, want) || got == nil {
			r.t.Errorf("the pod of stream %d got %d bytes, want %d and a FIN", id, len(got), len(want))
		}
	case <-time.After(20 * time.Second):
		r.t.Errorf("the pod of stream %d hears no end", id)
	}
}

func (r *rawPeer) answersPings(s transcript) {
	r.t.Helper()
	for _, f := range s.of(true, http2.FramePing) {
		if !f.flags.Has(http2.FlagPingAck) {
			r.until("an answer to the PING", func(s said) bool { return s.pongs[string(f.payload)] })
		}
	}
}

// podsSpeakLate lets pods talk and close behind the end of their streams, which
// the client must not hear of, and returns when the relays have ended.
func (r *replayedServer) podsSpeakLate(ids []uint32) {
	r.t.Helper()
	for _, id := range ids {
		pod, _ := r.pod(id)
		pod.Write([]byte("too late"))
		pod.Close()
	}
	eventually(r.t, "the end of the relays", func() bool { r.s.mu.Lock(); defer r.s.mu.Unlock(); return r.s.running == 0 })
}

// next uses the session once more.
func (r *replayedServer) next(id uint32) {
	r.t.Helper()
	r.connect(id)
	r.fr.WriteData(id, true, []byte("alive"))
	r.kind(http2.FrameHeaders, id)
	_, pod := r.pod(id)
	select {
	case got := <-pod:
		if string(got) != "alive" {
			r.t.Errorf("the next stream brought %q", got)
		}
	case <-time.After(20 * time.Second):
		r.t.Error("the session does not serve the next stream")
	}
}

func TestAStockClientIsDrainedAsRecorded(t *testing.T) {
	s := readTranscript(t, "client-drained")
	r := newReplayedServer(t, DefaultConfig(), false)
	r.play(s)
	r.delivered(s, 1)
	r.wg.Wait() // the session has ended by itself
	if err := r.s.Err(); !errors.Is(err, ErrSessionClosed) {
		t.Errorf("the session ended with %v", err)
	}
}

// The transport ends behind the last DATA.
func TestALostEndOfAStockClientIsAnEndAsRecorded(t *testing.T) {
	s := readTranscript(t, "client-inner-end-lost")
	r := newReplayedServer(t, DefaultConfig(), true)
	r.play(s)
	r.c.(*simnet.Conn).CloseWrite()
	want, ended := s.data(true, 1)
	if ended {
		t.Fatal("the recording has the END_STREAM")
	}
	_, pod := r.pod(1)
	if got := <-pod; !bytes.Equal(got, want) {
		t.Errorf("the pod got %q, want %q and a FIN", got, want)
	}
}

// replayedClient is a client session under test.
type replayedClient struct {
	*rawPeer
	t       *testing.T
	s       *Session
	streams map[uint32]chan opened
	open    map[uint32]*Stream
}

// TestStockServersAreUnderstoodAsRecorded replays what a stock server sent
// against a client session.
func TestStockServersAreUnderstoodAsRecorded(t *testing.T) {
	for _, c := range []struct {
		name   string
		status map[uint32]int // where it is not 200
		goAway bool
	}{
		{name: "server-echoes"},
		{name: "server-refuses", status: map[uint32]int{1: 503, 3: 401}},
		{name: "server-goes-away", goAway: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := readTranscript(t, c.name)
			r := &replayedClient{t: t, streams: map[uint32]chan opened{}, open: map[uint32]*Stream{}}
			r.start(s)
			statuses := map[uint32]int{}
			for _, id := range s.streams(false) {
				got := <-r.streams[id]
				var status *StatusError
				switch {
				case errors.As(got.err, &status):
					statuses[id] = status.Status
				case got.err != nil:
					t.Errorf("stream %d: %v", id, got.err)
				default:
					r.expectServer(s, got.st)
				}
			}
			if !maps.Equal(statuses, c.status) {
				t.Errorf("refusals by stream: %v, want %v", statuses, c.status)
			}
			r.answersPings(s)
			if !c.goAway {
				r.rawPeer.sync()
				if _, id := r.openRaw(r.s); id != slices.Max(s.streams(false))+2 {
					t.Errorf("the next stream is %d", id)
				}
				return
			}
			if r.s.CanOpen() {
				t.Error("the session opens streams after GOAWAY")
			}
			<-r.s.Done()
		})
	}
}

// start plays the transcript: our frames by doing what made us send them.
func (r *replayedClient) start(s transcript) {
	a, b := simnet.Pair(simnet.Options{Buffer: 8 << 20})
	r.rawPeer = newRawPeer(r.t, a)
	r.pongs = false
	read := make(chan struct{})
	go func() {
		io.ReadFull(a, make([]byte, len(http2.ClientPreface)))
		close(read)
		r.rawPeer.read()
	}()
	cfg := DefaultConfig()
	cfg.PingEvery = -1
	made := make(chan error, 1)
	go func() {
		var err error
		r.s, err = NewClient(context.Background(), plainTransport{b}, cfg)
		made <- err
	}()
	<-read
	sent := map[uint32]int{}
	for _, st := range s {
		if st.stock {
			a.Write(st.bytes())
			if made != nil {
				check(r.t, <-made)
				made = nil
				r.t.Cleanup(func() { a.Close(); r.s.Close(nil); <-r.s.life.transportClosed })
			}
			continue
		}
		for _, f := range st.frames {
			r.act(f, sent)
		}
	}
}

func (r *replayedClient) act(f spokenFrame, sent map[uint32]int) {
	r.t.Helper()
	switch f.kind {
	case http2.FrameHeaders:
		r.streams[f.id] = openAsync(r.s, nil)
		r.until(fmt.Sprintf("CONNECT on stream %d", f.id), func(s said) bool { return s.headers[f.id] == 1 })
	case http2.FrameData:
		if r.open[f.id] == nil {
			o := <-r.streams[f.id]
			check(r.t, o.err)
			r.streams[f.id] <- o
			r.open[f.id] = o.st
		}
		st := r.open[f.id]
		sent[f.id] += len(f.payload)
		st.Write(f.payload)
		if f.end() {
			st.CloseWrite()
		}
		r.until(fmt.Sprintf("%d bytes on stream %d, end %v", sent[f.id], f.id, f.end()), func(s said) bool {
			return s.data[f.id] == sent[f.id] && s.ended[f.id] == f.end()
		})
	}
}

// expectServer expects the bytes that the stock server sent, and its end.
func (r *replayedClient) expectServer(s transcript, st *Stream) {
	r.t.Helper()
	want, ended := s.data(true, st.ID())
	got := make([]byte, len(want))
	if _, err := io.ReadFull(st, got); err != nil || !bytes.Equal(got, want) {
		r.t.Errorf("stream %d brought %q (%v), want %q", st.ID(), got, err, want)
	}
	if ended {
		if n, err := st.Read(make([]byte, 1)); err != io.EOF {
			r.t.Errorf("behind the end stream %d brings %d bytes and %v", st.ID(), n, err)
		}
	}
	st.Close()
}
