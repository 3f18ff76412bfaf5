package hbone

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TryWrite takes what the windows allow and never waits for more.
func TestTryWriteTakesWhatTheWindowsAllow(t *testing.T) {
	_, s := rawServer(t, DefaultConfig(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
	st, err := s.Start(&Request{Authority: "a:1"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if n, err := st.TryWrite(make([]byte, 5000)); n != 1000 || err != nil {
			t.Errorf("TryWrite took %d, %v; want the 1000 of the window", n, err)
		}
		if n, err := st.TryWrite([]byte("more")); n != 0 || err != nil {
			t.Errorf("TryWrite took %d, %v from a window that is used up; want 0", n, err)
		}
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("TryWrite waits")
	}
	st.Reset(http2.ErrCodeCancel)
	if n, err := st.TryWrite([]byte("x")); n != 0 || err == nil {
		t.Errorf("TryWrite on a stream that was reset took %d, %v", n, err)
	}
}

// What a relay is given to send first comes before what the application sends.
func TestARelaySendsFirstWhatItWasGiven(t *testing.T) {
	p := newProxied(t, rigConfig{})
	a, b := tcpPair(t)
	defer a.Close()
	st := open(t, p.r.client)
	result := make(chan RelayResult, 1)
	first := bytes.Repeat([]byte("first "), 1000)
	go func() { result <- RelayWith(context.Background(), st, b, RelayOptions{First: first}) }()
	app := (<-p.app).(*net.TCPConn)
	defer app.Close()
	a.Write([]byte("then"))
	a.(*net.TCPConn).CloseWrite()
	expectAll(t, app, append(first, "then"...))
	app.Close()
	if r := <-result; r.Err != nil || r.ToStream != int64(len(first)+4) {
		t.Errorf("relay ended with %v after %d bytes", r.Err, r.ToStream)
	}
}
