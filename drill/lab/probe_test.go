package lab

import (
	"io"
	"net"
	"testing"
	"time"
)

// What a pod is to do again it may do late, on a machine that is busy; what it is to do
// no more is believed after a look.
func TestAProbeWaitsForWhatIsToCome(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	over := make(chan struct{})
	defer close(over)
	go func() {
		for late := 2 * look; ; late = time.Hour { // the first is answered, and no other
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				select {
				case <-over:
				case <-time.After(late):
					io.WriteString(c, "hello")
				}
			}()
		}
	}()
	for _, want := range []string{"answers", "silent"} {
		if got := (*network)(nil).probeFor(t.Context(), addr, want); got != want {
			t.Errorf("it %s, want %s", got, want)
		}
	}
	l.Close()
	if got := (*network)(nil).probeFor(t.Context(), addr, "refused"); got != "refused" {
		t.Errorf("it %s, want refused", got)
	}
}
