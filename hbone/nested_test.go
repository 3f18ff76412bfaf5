package hbone

import (
	"crypto/tls"
	"testing"

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
