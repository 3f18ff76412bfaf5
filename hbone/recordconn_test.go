package hbone

import (
	"bytes"
	"errors"
	"net"
	"sync"
	"testing"

	"golang.org/x/net/http2"
)

// The session that carries a stream may end, or the stream be reset, while the session
// inside it looks for a record: what was counted is gone when its header is looked at.
func TestAStreamIsResetUnderTheReaderOfItsRecords(t *testing.T) {
	p, s := rawServer(t, DefaultConfig())
	records := bytes.Repeat([]byte{23, 3, 3, 0, 1, 0}, 300)
	for range 200 {
		st, id := p.openRaw(s)
		p.fr.WriteData(id, false, records)
		check(t, st.recv.wait(len(records)))
		c := newRecordConn(st)
		var wg sync.WaitGroup
		wg.Go(func() { st.Reset(http2.ErrCodeCancel) })
		buf := make([]byte, tlsHeaderLen+1)
		var err error
		for err == nil {
			c.next()
			_, err = c.Read(buf)
		}
		wg.Wait()
		if !errors.Is(err, net.ErrClosed) && !errors.As(err, new(*ResetError)) {
			t.Fatalf("the reader of a stream that was reset got %v", err)
		}
		if size, ok := c.next(); ok {
			t.Fatalf("a record of %d bytes is at hand in a stream that was reset", size)
		}
		if n, ok := c.in.length(); ok {
			t.Fatalf("the next record of a stream that was reset has %d bytes", n)
		}
	}
}
