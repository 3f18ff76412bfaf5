//go:build linux

package capture

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// listenAs has a port of a pod be as that of an application in that state. One that is alive greets.
func (w *world) listenAs(t *testing.T, pod, state string, port int) {
	t.Helper()
	switch state {
	case "nobody":
	case "alive", "dead":
		l, err := w.Listen(pod, fmt.Sprintf("[::]:%d", port))
		must(t, err)
		if state == "dead" {
			must(t, l.Close())
			return
		}
		t.Cleanup(func() { l.Close() })
		go greet(l)
	case "hung": // its accept queue is full of the pod's own connections
		own := &unix.SockaddrInet6{Port: port}
		must(t, w.In(pod, func() error {
			fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				t.Cleanup(func() { unix.Close(fd) })
				err = errors.Join(unix.Bind(fd, own), unix.Listen(fd, 0))
			}
			own.Addr = [16]byte{15: 1}
			for i := 0; err == nil && i < 3; i++ {
				var c int
				if c, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err == nil {
					t.Cleanup(func() { unix.Close(c) })
					if err = unix.Connect(c, own); errors.Is(err, unix.EINPROGRESS) {
						err = nil
					}
				}
			}
			return os.NewSyscallError("listen", err)
		}))
	}
}

func greet(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		io.WriteString(c, "hello")
		c.Close()
	}
}

// attempt is what a host sees of a connect to a port, and of the first bytes.
func (w *world) attempt(t *testing.T, host, to string, limit time.Duration) string {
	t.Helper()
	var c net.Conn
	err := w.In(host, func() (err error) { c, err = net.DialTimeout("tcp", to, limit); return err })
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no answer"
	case errors.Is(err, syscall.ECONNRESET): // it came before the connect returned
		return "denied"
	case err != nil:
		return err.Error()
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(limit))
	b, err := io.ReadAll(c)
	switch {
	case err == nil && string(b) == "hello":
		return "greeted"
	case len(b) == 0 && errors.Is(err, syscall.ECONNRESET):
		return "denied"
	case len(b) == 0 && errors.As(err, &timeout) && timeout.Timeout():
		return "no answer" // connected, and nothing comes
	}
	return fmt.Sprintf("%q, %v", b, err)
}

// What comes in is as without capture, in both families and whatever state an application is in: for the node's own
// processes under all policies, for others while no policy denies them. Those who are denied get no byte, and a port without
// a listener refuses them. What the node masquerades is not the node's own.
func TestInboundIsAsWithoutCapture(t *testing.T) {
	needsNft(t)
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 3))
	w := newWorld(t)
	const masked = "10.71.1.66"
	must(t, w.Host("all", "masked", masked))
	must(t, w.In("node-a", func() error { return command("sysctl", "-qw", "net.ipv4.ip_forward=1") }))
	_, err := w.Nft("node-a", "add table ip nat; add chain ip nat post { type nat hook postrouting priority 100; }; add rule ip nat post ip saddr "+masked+" masquerade")
	must(t, err)
	must(t, w.IP("masked", "route add "+addresses["shop-1"]+"/32 via "+addresses["node-a"]))
	type port struct {
		state    string
		from, to string
		without  string
	}
	var ports []*port
	limit := func(state string) time.Duration {
		if state == "hung" { // who is slow has no answer either
			return 300 * time.Millisecond
		}
		return 5 * time.Second
	}
	for i, state := range []string{"nobody", "alive", "dead", "hung"} {
		w.listenAs(t, "shop-1", state, 9000+i)
		for _, from := range []string{"node-a", "gateway", "masked"} {
			for _, host := range []string{addresses["shop-1"], v6(addresses["shop-1"])} {
				if from == "masked" && strings.Contains(host, "fd71") {
					continue
				}
				x := &port{state: state, from: from, to: fmt.Sprint(host, ":", 9000+i)}
				x.without = w.attempt(t, x.from, x.to, limit(state))
				ports = append(ports, x)
			}
		}
	}
	w.scope(t, "node-a", "all")
	w.until(t, 10*time.Second, "shop-1", hello+":80", answered)
	alive := addresses["shop-1"] + ":9001"
	policies := []struct {
		name, text string
		denies     bool
	}{{"no policy", "", false}, {"STRICT", strict, true}, {"ALLOW of an identity", onlyHello, true}, {"a policy of another port",
		strings.Replace(notFrom, `from: [{source: {ipBlocks: ["10.71.9.1/32"]}}]`, `to: [{operation: {ports: ["7777"]}}]`, 1), false}}
	last := -1
	for range 6 {
		n := rnd.IntN(len(policies))
		if n == last {
			continue
		}
		last = n
		p := policies[n]
		w.write(t, "mesh.yaml", p.text+mesh)
		want := map[bool]string{true: "denied", false: "greeted"}[p.denies]
		for end := time.Now().Add(10 * time.Second); w.attempt(t, "gateway", alive, 5*time.Second) != want; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("seed %d: %s does not come into force", seed, p.name)
			}
		}
		time.Sleep(100 * time.Millisecond) // and in rules, where it makes no difference to this one
		for _, x := range ports {
			want, limit := x.without, limit(x.state)
			if p.denies && x.from != "node-a" && want != "refused" {
				want, limit = "denied", 5*time.Second
			}
			if got := w.attempt(t, x.from, x.to, limit); got != want {
				t.Errorf("seed %d, %s, %s from %s to %s: %s, want %s", seed, p.name, x.state, x.from, x.to, got, want)
			}
		}
	}
}

// An application that begins to listen under STRICT is reached by the node at once, and by nobody else before policies.
func TestSTRICTHoldsFromTheFirstConnection(t *testing.T) {
	needsNft(t)
	t.Parallel()
	w := newWorldAll(t)
	w.write(t, "mesh.yaml", strict+mesh)
	w.until(t, 10*time.Second, "gateway", addresses["shop-1"]+":8080", func(_ string, err error) bool { return err != nil })
	for i := range 20 {
		to := fmt.Sprint(addresses["shop-1"], ":", 9100+i)
		var stop atomic.Bool
		tried := make(chan struct{})
		ended := make(chan string, 1)
		go func() { // tries all the time
			for n := 0; !stop.Load(); n++ {
				if got := w.attempt(t, "gateway", to, 5*time.Second); got != "refused" && got != "denied" {
					ended <- got
					return
				}
				if n == 5 {
					close(tried)
				}
			}
			ended <- ""
		}()
		select {
		case <-tried:
		case got := <-ended:
			t.Fatalf("nobody listens, and an outsider is %s", got)
		}
		l, err := w.Listen("shop-1", "[::]:"+fmt.Sprint(9100+i))
		must(t, err)
		go greet(l)
		if got := w.attempt(t, "node-a", to, 5*time.Second); got != "greeted" {
			t.Errorf("an application that has begun to listen: the node is %s", got)
		}
		time.Sleep(time.Duration(i) * time.Millisecond)
		l.Close()
		stop.Store(true)
		if got := <-ended; got != "" {
			t.Errorf("under STRICT an outsider is %s", got)
		}
	}
}
