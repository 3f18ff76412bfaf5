package hbone

import (
	"crypto/tls"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// A session may end as soon as its first frames are written, which is before its
// parent hears of it.
func TestASessionThatEndedBeforeItJoinedIsNotKept(t *testing.T) {
	r := newRig(t, rigConfig{})
	st := open(t, r.client)
	defer st.Close()
	rec := newRecordConn(st)
	clientTLS, _ := testTLS()
	s := newSession(&TLSTransport{rec: rec, tc: tls.Client(rec, clientTLS)}, Config{}, true)
	close(s.life.readDone) // nobody reads
	s.end(ErrSessionClosed, http2.ErrCodeNo, endAbrupt)
	s.joinParent()
	if n := len(r.client.childrenNow()); n != 0 {
		t.Errorf("%d sessions that have ended are kept by their parent, want none", n)
	}
	<-s.life.transportClosed
}

// What is inside a tunnel is halted when the session that carries it is, in either direction.
func TestASessionIsHaltedWithTheOneThatCarriesIt(t *testing.T) {
	inner, outer := innerPair(t, echoHandler)
	s := outer.client
	halted := func() time.Duration { return inner.Availability(time.Now()).Halted }
	if d := halted(); d != 0 {
		t.Errorf("halted for %v at the beginning", d)
	}
	since := time.Now().Add(-time.Minute)
	s.mu.Lock()
	left := s.send.window
	s.send.window, s.send.emptied = 0, since
	s.mu.Unlock()
	if d := halted(); d < time.Minute {
		t.Errorf("halted for %v, though the session that carries it has not been able to send for a minute", d)
	}
	s.mu.Lock()
	s.send.window += left
	s.send.wakeCredit()
	s.mu.Unlock()
	if d := halted(); d != 0 {
		t.Errorf("halted for %v after that", d)
	}
	w := &s.window
	w.mu.Lock()
	left, w.avail, w.empty = w.avail, 0, since
	w.mu.Unlock()
	if d := halted(); d < time.Minute {
		t.Errorf("halted for %v, though nothing may be sent to the session that carries it for a minute", d)
	}
	w.mu.Lock()
	w.avail, w.empty = w.avail+left, time.Time{}
	w.mu.Unlock()
}
