package gateway

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
	"github.com/isthmus-mesh/isthmus/internal/wan"
)

// Connections whose TCP handshake with a listener is under way when it closes are
// accepted by the other process on the same address.
func TestAHandOverLosesNoConnectionThatIsBeingMade(t *testing.T) {
	netspace.NeedRoot(t)
	s, err := netspace.New("handover")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	for name, hosts := range map[string]map[string][]string{"east": {"client": {"10.71.1.2"}}, "west": {"server": {"10.71.2.2"}}} {
		if err := s.Segment(name, hosts); err != nil {
			t.Fatal(err)
		}
	}
	var taps [2]*os.File
	for i, segment := range []string{"east", "west"} {
		if taps[i], err = s.Tap(segment); err != nil {
			t.Fatal(err)
		}
	}
	const delay = 100 * time.Millisecond
	link := wan.Join(taps[0], taps[1], wan.Conditions{Delay: delay}, 1)
	t.Cleanup(link.Close)
	at := netip.MustParseAddrPort("10.71.2.2:15008")
	var old, next *net.TCPListener
	if err := s.In("server", func() (err error) {
		if err = migrateRequests(); err != nil {
			return err
		}
		if old, err = listen(at, true); err == nil {
			next, err = listen(at, true)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	go func() {
		for {
			c, err := next.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("x"))
			c.Close()
		}
	}()
	if err := s.In("client", func() error { // so that the addresses of the machines are known
		c, err := net.DialTimeout("tcp4", at.String(), 20*time.Second)
		if err == nil {
			c.Close()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	const n = 64 // half of them belong to old, more or less
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			errs[i] = s.In("client", func() error {
				c, err := net.DialTimeout("tcp4", at.String(), 20*time.Second)
				if err != nil {
					return err
				}
				defer c.Close()
				c.SetDeadline(time.Now().Add(20 * time.Second))
				_, err = c.Read(make([]byte, 1))
				return err
			})
		})
	}
	time.Sleep(2 * delay) // every SYN is there, and no answer to its SYN-ACK
	old.Close()
	wg.Wait()
	lost := map[string]int{}
	for _, err := range errs {
		if err != nil {
			lost[fmt.Sprint(err)]++
		}
	}
	if len(lost) > 0 {
		t.Errorf("of %d connections that were being made these were lost: %v", n, lost)
	}
}
