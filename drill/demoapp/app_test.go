package demoapp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// start runs an app on a free loopback port (two with b) and closes it after
// the test.
func start(t *testing.T, e Exchange) (*App, netip.AddrPort) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddrPort(l.Addr().String())
	l.Close()
	a, err := Start(t.Context(), Config{Name: "west-1", Listen: []netip.AddrPort{addr}, Exchange: e})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a, addr
}

func dial(t *testing.T, addr netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	t.Helper()
	c, err := net.DialTimeout("tcp4", addr.String(), timeout)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func hello(c net.Conn, n string, wait time.Duration) (string, error) {
	c.SetDeadline(time.Now().Add(wait))
	if _, err := fmt.Fprintf(c, "hello %s\n", n); err != nil {
		return "", err
	}
	return bufio.NewReader(c).ReadString('\n')
}

func TestAppAnswersItsNamePortAndTheNumber(t *testing.T) {
	_, addr := start(t, Request)
	c, err := dial(t, addr, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"7", "8"} {
		got, err := hello(c, n, 5*time.Second)
		if want := fmt.Sprintf("west-1 %d %s\n", addr.Port(), n); got != want || err != nil {
			t.Errorf("hello %s: got %q, %v; want %q", n, got, err, want)
		}
	}
}

// Pods of IPv6 have an application too, and [::] is every address of both families.
func TestAppListensOnIPv6(t *testing.T) {
	for listen, dialled := range map[string][]string{"[::1]": {"[::1]"}, "[::]": {"[::1]", "127.0.0.1"}} {
		l, err := net.Listen("tcp", "[::]:0")
		if err != nil {
			t.Fatal(err)
		}
		port := uint16(l.Addr().(*net.TCPAddr).Port)
		l.Close()
		a, err := Start(t.Context(), Config{Name: "west-1", Listen: []netip.AddrPort{netip.MustParseAddrPort(fmt.Sprintf("%s:%d", listen, port))}})
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range dialled {
			c, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", to, port), 20*time.Second)
			if err != nil {
				t.Fatalf("listening on %s: %v", listen, err)
			}
			got, err := hello(c, "7", 5*time.Second)
			if want := fmt.Sprintf("west-1 %d 7\n", port); got != want || err != nil {
				t.Errorf("listening on %s, hello by %s: got %q, %v; want %q", listen, to, got, err, want)
			}
			c.Close()
		}
		if err := a.Refuse(t.Context(), port); err != nil {
			t.Errorf("listening on %s: refuse: %v", listen, err)
		}
		if c, err := net.DialTimeout("tcp", fmt.Sprintf("[::1]:%d", port), 20*time.Second); err == nil {
			t.Errorf("listening on %s: it answers although it refuses", listen)
			c.Close()
		}
		a.Close()
	}
}

func TestAppSpeaksFirstWithBanner(t *testing.T) {
	_, addr := start(t, Banner)
	c, err := dial(t, addr, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(5 * time.Second))
	got, err := bufio.NewReader(c).ReadString('\n')
	if want := fmt.Sprintf("west-1 %d\n", addr.Port()); got != want || err != nil {
		t.Errorf("banner: got %q, %v; want %q", got, err, want)
	}
}

func TestAppAnswersAnyHTTPRequest(t *testing.T) {
	_, addr := start(t, Request)
	want := fmt.Sprintf("west-1 %d\n", addr.Port())
	for _, method := range []string{"GET", "POST", "DELETE"} {
		req, _ := http.NewRequestWithContext(t.Context(), method, "http://"+addr.String()+"/any/path?x=y", strings.NewReader("body"))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || string(body) != want {
			t.Errorf("%s: got %d %q, want 200 %q", method, resp.StatusCode, body, want)
		}
	}
}

func TestRefuseIsECONNREFUSEDAndHealsAtOnce(t *testing.T) {
	a, addr := start(t, Request)
	before, err := dial(t, addr, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := a.Refuse(t.Context(), addr.Port()); err != nil {
			t.Fatal(err)
		}
		if _, err := dial(t, addr, 20*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial while refusing: got %v, want ECONNREFUSED", err)
		}
		if _, err := hello(before, "1", 5*time.Second); err != nil {
			t.Errorf("connection from before the fault: %v, want an answer", err)
		}
		if err := a.Heal(t.Context(), addr.Port()); err != nil {
			t.Fatal(err)
		}
		c, err := dial(t, addr, 20*time.Second)
		if err != nil {
			t.Fatalf("dial after heal: %v", err)
		}
		if _, err := hello(c, "2", 5*time.Second); err != nil {
			t.Errorf("hello after heal: %v", err)
		}
	}
}

// A listener that is closed resets what waits in its queue; refuse must not:
// every client that got connected is answered, every other one is refused.
func TestRefuseResetsNoConnectionThatWasMade(t *testing.T) {
	a, addr := start(t, Request)
	stop := make(chan struct{})
	var made, answered, refused atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := net.DialTimeout("tcp4", addr.String(), 5*time.Second)
				if errors.Is(err, syscall.ECONNREFUSED) {
					refused.Add(1)
					continue
				}
				if err != nil {
					t.Errorf("dial: %v, want connected or refused", err)
					return
				}
				made.Add(1)
				if _, err := hello(c, "1", 5*time.Second); err != nil {
					t.Errorf("connected, then: %v, want an answer", err)
				} else {
					answered.Add(1)
				}
				c.Close()
			}
		})
	}
	wait := func(n *atomic.Int64, more int64) {
		deadline := time.Now().Add(20 * time.Second)
		for until := n.Load() + more; n.Load() < until && !t.Failed(); {
			if time.Now().After(deadline) {
				t.Fatalf("counter stuck at %d", n.Load())
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
	for range 4 {
		wait(&answered, 20)
		if err := a.Refuse(t.Context(), addr.Port()); err != nil {
			t.Fatal(err)
		}
		wait(&refused, 10)
		if err := a.Heal(t.Context(), addr.Port()); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	if made.Load() != answered.Load() {
		t.Errorf("made %d connections, answered %d", made.Load(), answered.Load())
	}
}

func TestHangLeavesConnectUnansweredUntilHealed(t *testing.T) {
	a, addr := start(t, Request)
	before, err := dial(t, addr, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Hang(t.Context(), addr.Port()); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, addr, 100*time.Millisecond); !isTimeout(err) {
		t.Errorf("dial while hanging: got %v, want a timeout", err)
	}
	if _, err := hello(before, "1", 5*time.Second); err != nil {
		t.Errorf("connection from before the fault: %v, want an answer", err)
	}
	if err := a.Heal(t.Context(), addr.Port()); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, addr, 5*time.Second); err != nil {
		t.Errorf("dial after heal: %v", err)
	}
}

func TestSilentAcceptsAndNeverAnswersUntilHealed(t *testing.T) {
	for _, e := range []Exchange{Request, Banner} {
		a, addr := start(t, e)
		if err := a.Silence(t.Context(), addr.Port()); err != nil {
			t.Fatal(err)
		}
		c, err := dial(t, addr, 20*time.Second)
		if err != nil {
			t.Fatalf("%s: dial while silent: %v, want connected", e, err)
		}
		if got, err := hello(c, "1", 100*time.Millisecond); !isTimeout(err) {
			t.Errorf("%s: hello while silent: got %q, %v; want a timeout", e, got, err)
		}
		if err := a.Heal(t.Context(), addr.Port()); err != nil {
			t.Fatal(err)
		}
		c, err = dial(t, addr, 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hello(c, "2", 5*time.Second); err != nil {
			t.Errorf("%s: hello after heal: %v", e, err)
		}
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestControlObeysAndSaysWhyNot(t *testing.T) {
	a, addr := start(t, Request)
	in := fmt.Sprintf("{\"do\":\"refuse\",\"port\":%d}\n{\"do\":\"refuse\",\"port\":1}\n{\"do\":\"sulk\",\"port\":%[1]d}\nnonsense\n", addr.Port())
	var out strings.Builder
	if err := a.Control(t.Context(), strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{`{"do":"ready"}`, fmt.Sprintf(`{"do":"refuse","port":%d}`, addr.Port()), "does not listen there", "use refuse, hang, silent, slow or heal", "nonsense"}
	if len(lines) != len(want) {
		t.Fatalf("got %d replies %q, want %d", len(lines), lines, len(want))
	}
	for i := range want {
		if !strings.Contains(lines[i], want[i]) {
			t.Errorf("reply %d: got %s, want it to contain %s", i, lines[i], want[i])
		}
	}
}

func TestStartRefusesBadConfig(t *testing.T) {
	addr := netip.MustParseAddrPort("127.0.0.1:1")
	for want, c := range map[string]Config{
		"name is empty":         {Listen: []netip.AddrPort{addr}},
		"no listen address":     {Name: "x"},
		"exchange \"shout\"":    {Name: "x", Listen: []netip.AddrPort{addr}, Exchange: "shout"},
		"listen on 192.0.2.1:1": {Name: "x", Listen: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1")}},
	} {
		if _, err := Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
