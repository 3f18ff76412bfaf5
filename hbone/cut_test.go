package hbone

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// The end of a TLS connection is io.EOF only behind the closing alert.
func TestAConnectionThatIsCutShortDoesNotEndInOrder(t *testing.T) {
	for _, inOrder := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			a, b := simnet.Pair(simnet.Options{})
			client, server := tlsOver(t, a, b)
			check(t, client.WriteBurst([]byte("the last words")))
			if inOrder {
				client.Close()
			} else {
				client.abort()
			}
			buf := make([]byte, 64<<10)
			n, err := server.Read(buf)
			for err == nil && n < 14 {
				var k int
				k, err = server.Read(buf[n:])
				n += k
			}
			if err == nil {
				server.await()
				_, err = server.Read(buf)
			}
			if n != 14 || (err == io.EOF) != inOrder || !inOrder && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("closed in order %v: read %d bytes, then %v", inOrder, n, err)
			}
			server.abort()
		})
	}
}
