package hbone

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// countingConn counts the writes that reach the network.
type countingConn struct {
	net.Conn
	writes atomic.Int64
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

func TestBurstIsOneWriteAndReadGathersIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := simnet.Pair(simnet.Options{Buffer: 1 << 20})
		counted := &countingConn{Conn: a}
		ct, st := tlsOver(t, counted, b)
		counted.writes.Store(0)
		data := bytes.Repeat([]byte("0123456789abcdef"), 4096) // four records
		check(t, ct.WriteBurst(data))
		if n := counted.writes.Load(); n != 1 {
			t.Errorf("%d writes for one burst of 64 KiB, want 1", n)
		}
		st.await()
		for !st.buffered() {
			t.Fatal("await returned without a record")
		}
		got := make([]byte, 64<<10)
		total := 0
		for total < len(got) { // the first reads come before the buffer has grown
			n, err := st.Read(got[total:])
			check(t, err)
			total += n
		}
		if !bytes.Equal(got, data) {
			t.Error("data differ")
		}
		check(t, ct.WriteBurst(data))
		synctest.Wait()
		st.await()
		if n, err := st.Read(got); n != len(data) || err != nil {
			t.Errorf("gathered %d bytes, %v; want all four records at once", n, err)
		}
		if st.Protocol() != "h2" || st.Peer().ID.String() != testID || st.Peer().NotAfter.IsZero() {
			t.Errorf("protocol %q, peer %+v", st.Protocol(), st.Peer())
		}
		ct.abort()
		st.abort()
	})
}

func TestFailedHandshakeClosesTheConnectionAndNamesTheHop(t *testing.T) {
	clientTLS, serverTLS := testTLS()
	synctest.Test(t, func(t *testing.T) {
		a, b := simnet.Pair(simnet.Options{})
		noCert := clientTLS.Clone()
		noCert.Certificates = nil
		noCert.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tls.Certificate{}, nil }
		go func() {
			if ct, err := ClientTLS(context.Background(), a, noCert); err == nil {
				ct.Read(make([]byte, 1))
				ct.Close()
			}
		}()
		_, err := ServerTLS(t.Context(), b, serverTLS)
		if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
			t.Errorf("server said %v, want an error that names the peer", err)
		}
		if _, err := b.Write([]byte("x")); err == nil {
			t.Error("connection is still open")
		}
		time.Sleep(time.Second)
	})
}

func TestHandshakeBuffersStaySmall(t *testing.T) {
	a, b := simnet.Pair(simnet.Options{})
	c := newRecordConn(b)
	a.Write(make([]byte, 10))
	check(t, c.fill(0))
	if n := len(c.in.(*readAhead).buf); n > 20<<10 {
		t.Errorf("a connection that has sent next to nothing holds %d bytes", n)
	}
}

// Between the look at what there is and the wait for more, more may come: then
// there is nothing to wait for. (A connection in some 20 000 hung that way, until
// its client gave up.)
func TestWhatComesBeforeTheWaitEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := rawServer(t, DefaultConfig())
		st, id := p.openRaw(s)
		in := streamInput{st}
		seen := in.have()
		p.fr.WriteData(id, false, []byte("a whole record"))
		synctest.Wait()
		began := time.Now()
		go func() { // would free a wait that has missed it
			time.Sleep(time.Second)
			p.fr.WriteData(id, false, []byte("more"))
		}()
		check(t, in.fill(seen))
		if d := time.Since(began); d > 0 {
			t.Errorf("waited %v for bytes beside those that had come", d)
		}
		time.Sleep(2 * time.Second)
		st.Close()
	})
}
