package quic

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync"
	"testing"

	quicgo "github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
)

// Stock peers speak HTTP/3 alone. The one here is quic-go's.

func TestStockClient(t *testing.T) {
	r := newRig(t, rigConfig{handler: func(_ context.Context, in *hbone.Incoming) {
		if in.Authority == "gone.default:80" {
			in.Refuse(503, hbone.Header{header.NameReason: string(header.ReasonNoEndpoint)})
			return
		}
		echoOn(in)
	}})
	open(t, r.client).Close() // so that its session is the first of the listener
	cfg := r.clientTLS()
	cfg.NextProtos = []string{"h3"}
	q, err := quicgo.DialAddr(t.Context(), r.listener.Addr().String(), cfg, &quicgo.Config{MaxIncomingStreams: -1})
	check(t, err)
	c := new(http3.Transport).NewClientConn(q)
	connect := func(authority string) (*http3.RequestStream, *http.Response) {
		st, err := c.OpenRequestStream(t.Context())
		check(t, err)
		check(t, st.SendRequestHeader(&http.Request{Method: http.MethodConnect, Host: authority, URL: &url.URL{Host: authority}, Header: http.Header{}}))
		resp, err := st.ReadResponse()
		check(t, err)
		return st, resp
	}
	data := bytes.Repeat([]byte("stock"), 100<<10)
	for range 3 {
		st, resp := connect("app.default:80")
		if resp.StatusCode != 200 {
			t.Fatalf("status %d", resp.StatusCode)
		}
		go func() { st.Write(data); st.Close() }()
		if got, err := io.ReadAll(st); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("got %d bytes of %d back, %v", len(got), len(data), err)
		}
	}
	if _, resp := connect("gone.default:80"); resp.StatusCode != 503 || resp.Header.Get(header.NameReason) != string(header.ReasonNoEndpoint) {
		t.Errorf("refused with %d %v", resp.StatusCode, resp.Header)
	}
	q.CloseWithError(codeNoError, "")
	closed(t, "its session has ended", r.server(1).Done())
}

func TestStockServer(t *testing.T) {
	r := newRig(t, rigConfig{})
	l, err := quicgo.ListenAddr("127.0.0.1:0", r.ids.ServerTLS(serverID, nil, "h3"), &quicgo.Config{})
	check(t, err)
	server := &http3.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case req.Method != http.MethodConnect:
			w.WriteHeader(400)
		case req.Host == "gone.default:80":
			w.WriteHeader(503)
		default:
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			st, err := w.(http3.HTTPStreamer).HTTPStream()
			if err != nil {
				return
			}
			if req.Host == "resets.default:80" {
				st.CancelWrite(codeConnect)
				st.CancelRead(codeConnect)
				return
			}
			io.Copy(st, st)
			st.Close()
		}
	})}
	var serving sync.WaitGroup
	serving.Go(func() { server.ServeListener(l) })
	defer serving.Wait()
	defer server.Close()
	defer l.Close()

	p, err := Dial(t.Context(), udp(t), l.Addr(), r.clientTLS(), DialConfig{})
	check(t, err)
	s, err := hbone.NewClient(t.Context(), p, hbone.DefaultConfig())
	check(t, err)
	if p.Protocol() != "h3" {
		t.Errorf("protocol %q", p.Protocol())
	}
	data := bytes.Repeat([]byte("stock"), 100<<10)
	st := open(t, s)
	go func() { st.Write(data); st.CloseWrite() }()
	if got, err := io.ReadAll(st); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("got %d bytes of %d back, %v", len(got), len(data), err)
	}
	st.Close()
	var status *hbone.StatusError
	if _, _, err := s.Open(t.Context(), &hbone.Request{Authority: "gone.default:80"}); !errors.As(err, &status) || status.Status != 503 {
		t.Errorf("got %v, want 503", err)
	}
	// The reset may overtake the response, since this server sends RESET_STREAM.
	if st, _, err = s.Open(t.Context(), &hbone.Request{Authority: "resets.default:80"}); err == nil {
		_, err = io.ReadAll(st)
		st.Close()
	}
	wantReset(t, err, http2.ErrCodeConnect)
	s.Close(nil)
	closed(t, "the session is closed", s.Closed())
}

// Any status of 2xx accepts a CONNECT (RFC 9114 §4.4).
func TestClientAcceptsAny2xx(t *testing.T) {
	r := newRig(t, rigConfig{})
	s := r.rawServer(emptySettings, func(q *quicgo.Conn, _ *quicgo.SendStream) {
		if qs, err := q.AcceptStream(context.Background()); err == nil {
			qs.Write(appendFrame(responseBlock(204, nil), frameData, 'x'))
			qs.Close()
		}
	})
	st := open(t, s)
	defer st.Close()
	if b, err := io.ReadAll(st); err != nil || string(b) != "x" {
		t.Errorf("got %q, %v", b, err)
	}
}
