package gateway

import (
	"context"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

func TestAGatewayThatCannotDialEjectsNoPod(t *testing.T) {
	probing(t, func(l *listing, b *backends) {
		asked := 0
		b.ask = func(context.Context, *mesh.Workload) error {
			asked++
			return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
		}
		w := podAt(1, "10.1.2.1")
		l.set(w)
		b.doubt(w)
		time.Sleep(time.Minute) // bubble time
		synctest.Wait()
		if asked < 10 {
			t.Errorf("asked %d times in a minute; want it to go on", asked)
		}
		if !b.usable(w.Endpoint) {
			t.Errorf("%s is left out after %d questions, of which none left this host", w.UID, asked)
		}
	})
}
