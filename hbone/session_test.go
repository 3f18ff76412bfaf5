package hbone

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/isthmus-mesh/isthmus/hbone/header"
)

func TestConnectEchoAndHalfClose(t *testing.T) {
	r := newRig(t, rigConfig{})
	st := open(t, r.client)
	data := make([]byte, 3<<20)
	rand.NewChaCha8([32]byte{1}).Read(data)
	go func() {
		st.Write(data)
		st.CloseWrite()
	}()
	got, err := io.ReadAll(st)
	check(t, err)
	if !bytes.Equal(got, data) {
		t.Fatalf("echo of %d bytes differs, got %d bytes", len(data), len(got))
	}
	check(t, st.Close())
	eventually(t, "streams gone", func() bool { return r.client.Streams() == 0 && r.server.Streams() == 0 })
	if id := r.client.Peer().ID.String(); id != testID {
		t.Fatalf("peer is %q, want %q", id, testID)
	}
}

func TestRefuseCarriesStatusAndReason(t *testing.T) {
	r := newRig(t, rigConfig{handler: func(ctx context.Context, in *Incoming) {
		in.Refuse(503, Header{header.NameReason: string(header.ReasonRefused), header.NameEndpoint: header.FormatEndpoint(77)})
	}})
	_, _, err := r.client.Open(context.Background(), &Request{Authority: "app.default:80"})
	var se *StatusError
	if !errors.As(err, &se) || se.Status != 503 || se.Reason() != header.ReasonRefused || se.Endpoint() != 77 {
		t.Fatalf("got %v, want status 503 with reason refused and endpoint 77", err)
	}
	eventually(t, "streams gone", func() bool { return r.client.Streams() == 0 && r.server.Streams() == 0 })
}

func TestDoubleTunnelEndsTheOuterStreamInOrder(t *testing.T) {
	clientTLS, serverTLS := testTLS()
	outerEnd := make(chan error, 1)
	inner := func(ctx context.Context, in *Incoming) {
		st, err := in.Accept(nil)
		if err != nil {
			outerEnd <- err
			return
		}
		tr, err := ServerTLS(ctx, st, serverTLS)
		if err != nil {
			outerEnd <- err
			return
		}
		outerEnd <- NewServer(tr, DefaultConfig(), echoHandler).Serve(ctx)
	}
	r := newRig(t, rigConfig{handler: inner})
	outer := open(t, r.client)
	tr, err := ClientTLS(t.Context(), outer, clientTLS)
	check(t, err)
	s, err := NewClient(t.Context(), tr, DefaultConfig())
	check(t, err)
	st := open(t, s)
	if _, err := st.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	check(t, st.CloseWrite())
	got, err := io.ReadAll(st)
	check(t, err)
	if string(got) != "hello" {
		t.Fatalf("got %q", got)
	}
	s.Close(nil)
	if err := <-outerEnd; err != nil {
		t.Fatalf("inner server ended with %v, want nil", err)
	}
	eventually(t, "outer stream gone", func() bool { return r.client.Streams() == 0 && r.server.Streams() == 0 })
	if _, err := st.Write([]byte("x")); !errors.Is(err, net.ErrClosed) && err == nil {
		t.Fatal("write after close succeeded")
	}
}
