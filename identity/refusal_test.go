package identity

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
)

func TestReasonOfAHandshakeThatFailed(t *testing.T) {
	remote := func(alert string) error { return &net.OpError{Op: "remote error", Err: errors.New(alert)} }
	for _, c := range []struct {
		err       error
		reason    string
		untrusted bool
	}{
		{&OwnError{ID: cartID, Err: errDown}, ReasonOwnIdentity, false},
		{&PeerError{Got: strayID, TrustDomain: meshTD}, ReasonIdentity, false},
		{&PeerError{Got: otherID, TrustDomain: meshTD}, ReasonIdentity, true},
		{&ChainError{Got: cartID, Err: errors.New("unknown authority")}, ReasonIdentity, true},
		{remote("tls: bad certificate"), ReasonIdentity, false},
		{remote("tls: internal error"), ReasonHandshake, false}, // it has no certificate itself
		{io.EOF, ReasonHandshake, false},
	} {
		err := fmt.Errorf("hop: %w", c.err)
		if got := ReasonOf(err); got != c.reason {
			t.Errorf("%v: reason %s, want %s", err, got, c.reason)
		}
		if got := Untrusted(err); got != c.untrusted {
			t.Errorf("%v: untrusted %t, want %t", err, got, c.untrusted)
		}
	}
}

func TestAServerWithoutACertificateBlamesItselfAndItsClientDoesToo(t *testing.T) {
	ca := memoryCA(t, meshTD)
	client := NewManager(CASource{CA: ca, TTL: time.Hour}, quietLog)
	server := NewManager(&fakeSource{answer: down}, quietLog)
	_, cerr, serr := shake(clientConfig(t, client, stockID), server.ServerTLS(stockID, nil))
	if got := ReasonOf(serr); got != ReasonOwnIdentity {
		t.Errorf("the server says %s: %v", got, serr)
	}
	if got := ReasonOf(cerr); got != ReasonHandshake {
		t.Errorf("the client says %s: %v; the server is ill, nobody's identity is wrong", got, cerr)
	}
}

func TestRefusalsAreLoggedWithPeerAndHopOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		r := NewRefusals(zerolog.New(&log).Level(zerolog.InfoLevel))
		from := func(port int) net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: port} }
		refused := &ChainError{Got: cartID, Err: errors.New("unknown authority")}
		for port := range 50 {
			if got := r.Note("outer", "", from(1000+port), refused); got != ReasonIdentity {
				t.Fatalf("reason %s", got)
			}
		}
		r.Note("outer", "", from(1), io.EOF)
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Fatalf("%d lines, want one: %s", n, &log)
		}
		for _, want := range []string{`"warn"`, `"hop":"outer"`, "10.0.0.7:1000", cartID.String(), `"reason":"identity"`, "handshake refused"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%s does not say %s", &log, want)
			}
		}
		log.Reset()
		r.Note("pod", "west/default/hello-1", from(15008), refused)
		if !strings.Contains(log.String(), `"workload":"west/default/hello-1"`) {
			t.Errorf("another hop: %s", &log)
		}
		log.Reset()
		time.Sleep(time.Minute)
		synctest.Wait() // for the report of suppressed lines
		r.Note("outer", "", from(2), refused)
		if !strings.Contains(log.String(), `"suppressed":49`) {
			t.Errorf("after a minute: %s", &log)
		}
	})
}

// lines is a log that a timer writes to as well.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lines) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

// One host that says each time that it is somebody else neither fills the log nor
// takes the place of a line about another host.
func TestOneHostDoesNotFloodTheRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		r := NewRefusals(zerolog.New(&log).Level(zerolog.InfoLevel))
		stranger := func(i int) *ChainError {
			return &ChainError{Got: mustID(otherTD, strings.Repeat("n", 1000), fmt.Sprint("s", i)), Err: errors.New("x509: certificate signed by unknown authority")}
		}
		for i := range 5000 {
			r.Note("inbound", "west/default/pod-1", &net.TCPAddr{IP: net.IPv4(10, 0, 0, 66), Port: i}, stranger(i))
			wide := net.ParseIP("2001:db8::")
			wide[15], wide[14] = byte(i), byte(i>>8)
			r.Note("inbound", "west/default/pod-1", &net.TCPAddr{IP: wide, Port: i}, stranger(i))
		}
		if n := strings.Count(log.String(), "\n"); n != 2 {
			t.Errorf("two hosts, one workload, one reason: %d lines", n)
		}
		if n := len(log.String()); n > 2*(maxClaim+maxReason+500) {
			t.Errorf("two lines of %d bytes", n)
		}
		for i := range 500 {
			r.Note("inbound", fmt.Sprint("west/default/pod-", i), &net.TCPAddr{IP: net.IPv4(10, 0, 0, 66), Port: i}, stranger(i))
		}
		if n := strings.Count(log.String(), "10.0.0.66"); n != hostLines {
			t.Errorf("%d lines of one host, want %d", n, hostLines)
		}
		log.Reset()
		r.Note("pod", "west/default/hello-1", &net.TCPAddr{IP: net.IPv4(10, 9, 9, 9), Port: 1}, &ChainError{Got: cartID, Err: errors.New("x509: certificate has expired")})
		if !strings.Contains(log.String(), "10.9.9.9") {
			t.Errorf("another host is not told of: %q", &log)
		}
		log.Reset()
		time.Sleep(refusalInterval)
		synctest.Wait() // for the report of suppressed lines
		r.Note("inbound", "west/default/pod-1", &net.TCPAddr{IP: net.IPv4(10, 0, 0, 66), Port: 1}, stranger(1))
		if !strings.Contains(log.String(), `"suppressed":`) {
			t.Errorf("after a minute: %q; want how many were not logged", &log)
		}
	})
}
