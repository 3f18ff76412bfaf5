package hbone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// slow is the header of an informational response.
var slow = Header{header.NameSlow: "connect"}

// pauseUntil waits, as long as ctx allows.
func pauseUntil(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// Whether a CONNECT is withdrawn or accepted, both ends agree on which, and what was sent
// with one that is withdrawn nobody has read: over all orders of the informational
// response, the acceptance, a refusal and the withdrawal.
func TestAWithdrawnConnectIsServedOrNotAndBothEndsKnow(t *testing.T) {
	type result struct {
		accepted bool
		err      error
		got      int
		cause    error
	}
	outcomes := map[string]int{}
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 1))
		delay := time.Duration(rng.IntN(3)) * time.Millisecond
		accept, withdraw := time.Duration(rng.IntN(8))*time.Millisecond, time.Duration(rng.IntN(8))*time.Millisecond
		refuses, heeds, early := rng.IntN(4) == 0, rng.IntN(3) > 0, rng.IntN(3) > 0
		synctest.Test(t, func(t *testing.T) {
			served := make(chan result, 1)
			handler := func(ctx context.Context, in *Incoming) {
				in.Inform(slow)
				wait := ctx
				if !heeds {
					wait = context.Background()
				}
				pauseUntil(wait, accept)
				if refuses {
					in.Refuse(503, Header{header.NameReason: string(header.ReasonRefused)})
					served <- result{cause: context.Cause(ctx)}
					return
				}
				st, err := in.Accept(nil)
				if err != nil {
					served <- result{err: err, cause: context.Cause(ctx)}
					return
				}
				b, _ := io.ReadAll(st)
				st.Close()
				served <- result{accepted: true, got: len(b)}
			}
			r := newRig(t, rigConfig{client: DefaultConfig(), server: DefaultConfig(), handler: handler, pair: simPair(simnet.Options{Delay: delay})})
			st, err := r.client.Start(&Request{Authority: "app.default:80"})
			check(t, err)
			if early {
				_, err = st.TryWrite([]byte("early"))
				check(t, err)
			}
			interim := st.AwaitInterim(t.Context())
			if interim != nil && (interim.Status != 102 || interim.Header.Get(header.NameSlow) != "connect") {
				t.Fatalf("seed %d: informed of %+v", seed, interim)
			}
			time.Sleep(withdraw)
			st.Withdraw()
			st.Withdraw() // once is enough
			_, err = st.AwaitResponse(t.Context())
			var status *StatusError
			switch {
			case err == nil:
				if !early {
					st.Write([]byte("early"))
				}
				endStream(st)
			case !errors.As(err, &status):
				t.Fatalf("seed %d: %v", seed, err)
			}
			got := <-served
			what := "accepted"
			switch {
			case err == nil:
				if !got.accepted || got.got != 5 {
					t.Fatalf("seed %d: the client was answered 200, and the handler got %+v", seed, got)
				}
			case got.accepted:
				t.Fatalf("seed %d: the client was answered %v, and the handler has the stream", seed, err)
			default:
				what = string(status.Reason())
				if what == string(header.ReasonWithdrawn) && !errors.Is(got.err, ErrWithdrawn) || what != string(header.ReasonWithdrawn) && !refuses {
					t.Fatalf("seed %d: the client was answered %v, and the handler %+v", seed, err, got)
				}
			}
			outcomes[what]++
			synctest.Wait()
			if a, b := r.client.Streams(), r.server.Streams(); a+b != 0 {
				t.Fatalf("seed %d: %d and %d streams are left", seed, a, b)
			}
			check(t, r.client.CheckIdle())
			check(t, r.server.CheckIdle())
			r.close()
		})
	}
	for _, what := range []string{"accepted", "withdrawn", "refused"} {
		if outcomes[what] < 20 {
			t.Errorf("%d of 400 were %s: %v", outcomes[what], what, outcomes)
		}
	}
}

// A handler that leaves when its client withdraws need not answer.
func TestAHandlerThatLeavesAnswersAWithdrawalByItself(t *testing.T) {
	r := newRig(t, rigConfig{client: DefaultConfig(), server: DefaultConfig(), handler: func(ctx context.Context, in *Incoming) {
		in.Inform(slow)
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), ErrWithdrawn) {
			t.Errorf("its context ended with %v", context.Cause(ctx))
		}
	}})
	st, err := r.client.Start(&Request{Authority: "a:1"})
	check(t, err)
	if st.AwaitInterim(t.Context()) == nil {
		t.Fatal("no informational response")
	}
	st.Withdraw()
	var status *StatusError
	if _, err := st.AwaitResponse(t.Context()); !errors.As(err, &status) || status.Reason() != header.ReasonWithdrawn {
		t.Errorf("answered %v; want 503 withdrawn", err)
	}
}

// A frame of that type from somebody whom nothing was said to is one that we do not know.
func TestAWithdrawalThatNobodyWasInvitedToIsAnUnknownFrame(t *testing.T) {
	p, _ := rawClient(t, DefaultConfig(), func(ctx context.Context, in *Incoming) {
		if in.Authority == "informed:1" {
			in.Inform(slow)
		}
		st, err := in.Accept(nil)
		if err != nil {
			t.Errorf("%s: %v", in.Authority, err)
			return
		}
		<-ctx.Done()
		st.Close()
	})
	withdraw := func(id uint32, payload string) {
		p.fr.WriteRawFrame(http2.FrameType(wire.FrameWithdraw), 0, id, []byte(payload))
	}
	inOneBurst(p, func(fr *http2.Framer) { // before the handler runs
		fr.WriteRawFrame(http2.FrameType(wire.FrameWithdraw), 0xff, 0, []byte("x"))
		fr.WriteRawFrame(http2.FrameType(wire.FrameWithdraw), 0, 1, nil) // an idle stream
	})
	p.connect(1)
	withdraw(1, "")
	if f := p.kind(http2.FrameHeaders, 1); f.get(":status") != "200" {
		t.Errorf("%v; want 200", f)
	}
	p.headers(3, false, ":method", "CONNECT", ":authority", "informed:1")
	if f := p.kind(http2.FrameHeaders, 3); f.get(":status") != "102" || f.get(header.NameSlow) != "connect" {
		t.Errorf("%v; want 102", f)
	}
	if f := p.kind(http2.FrameHeaders, 3); f.get(":status") != "200" {
		t.Errorf("%v; want 200", f)
	}
	withdraw(3, "payload")
	withdraw(3, "")
	p.sync(1, 3) // it came too late
}

// Floods of either end the session: informational responses behind the first one of a
// stream, and withdrawals of what was not announced or is withdrawn already.
func TestFloodsOfWithdrawalsAndInformationalResponsesEndTheSession(t *testing.T) {
	p, s := rawClient(t, DefaultConfig(), func(ctx context.Context, in *Incoming) { in.Inform(slow); <-ctx.Done() })
	p.connect(1)
	p.kind(http2.FrameHeaders, 1)
	repeat(p, func(fr *http2.Framer) { fr.WriteRawFrame(http2.FrameType(wire.FrameWithdraw), 0, 1, nil) })
	p.goAway(http2.ErrCodeEnhanceYourCalm)
	<-s.Done()

	p, s = rawServer(t, DefaultConfig())
	opened := openAsync(s, nil)
	p.next("HEADERS", func(f rawFrame) bool { return f.Type == http2.FrameHeaders })
	var block bytes.Buffer
	block.WriteByte(0x08) // :status, literal without indexing, by the static table
	block.WriteString("\x03102")
	repeat(p, func(fr *http2.Framer) {
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	})
	p.goAway(http2.ErrCodeEnhanceYourCalm)
	if o := <-opened; o.err == nil {
		t.Error("opened")
	}
}

// A client hears of a first informational response on each of its streams, whoever is
// the peer, and without reaching a bound.
func TestOneInformationalResponseForEachConnectIsNoFlood(t *testing.T) {
	r := newRig(t, rigConfig{client: DefaultConfig(), server: DefaultConfig(), handler: func(ctx context.Context, in *Incoming) {
		in.Inform(slow)
		in.Inform(slow)
		<-ctx.Done()
	}})
	for i := range 2 * maxIdleFrames {
		st, err := r.client.Start(&Request{Authority: fmt.Sprint("a:", 1+i)})
		check(t, err)
		if st.AwaitInterim(t.Context()) == nil {
			t.Fatalf("CONNECT %d: not informed", i)
		}
		st.Withdraw()
		if _, err := st.AwaitResponse(t.Context()); !errors.As(err, new(*StatusError)) {
			t.Fatalf("CONNECT %d: %v", i, err)
		}
	}
	if err := r.server.Err(); err != nil {
		t.Error(err)
	}
}
