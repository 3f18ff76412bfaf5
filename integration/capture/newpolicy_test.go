//go:build linux

package capture

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// echo is an application of shop-1 on a port, which sends back what it receives. Its listener is plain TCP, as that of
// most programs: Go's own default is MPTCP. device is the interface that the listener is bound to, or empty.
func (w *world) echo(t *testing.T, network, at, device string) net.Listener {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if device != "" {
			if e := c.Control(func(fd uintptr) {
				err = syscall.SetsockoptString(int(fd), syscall.SOL_SOCKET, syscall.SO_BINDTODEVICE, device)
			}); e != nil {
				return e
			}
		}
		return err
	}}
	config.SetMultipathTCP(false)
	var l net.Listener
	must(t, w.In("shop-1", func() (err error) { l, err = config.Listen(context.Background(), network, at); return err }))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	return l
}

// echoes sends a byte, and returns an error if it does not come back.
func echoes(c net.Conn) error {
	c.SetDeadline(time.Now().Add(5 * time.Second))
	_, err := c.Write([]byte("x"))
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	return err
}

// deny puts STRICT into force, and returns when shop-1 denies new connections.
func (w *world) deny(t *testing.T) {
	t.Helper()
	w.write(t, "mesh.yaml", strict+mesh)
	w.until(t, 10*time.Second, "hello-1", addresses["shop-1"]+":8080", func(_ string, err error) bool { return err != nil })
}

// linkLocal waits for the link-local address of shop-1, and returns it with the interface.
func (w *world) linkLocal(t *testing.T) (address string) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); address == ""; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("shop-1 has no link-local address")
		}
		must(t, w.In("shop-1", func() error {
			out, err := exec.Command("ip", "-6", "-o", "addr", "show", "dev", "eth0", "scope", "link", "-tentative").Output()
			if f := strings.Fields(string(out)); len(f) > 3 {
				address, _, _ = strings.Cut(f[3], "/")
			}
			return err
		}))
	}
	return address + "%eth0"
}

// A policy that arrives resets connections, and leaves the listener of the application alone. This holds while clients
// close theirs, and for connections by link-local addresses.
func TestNewPolicySparesListener(t *testing.T) {
	for _, which := range []string{"closing", "link-local"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			w := newWorldAll(t)
			w.echo(t, "tcp", ":8094", "")
			count, to := 2000, addresses["shop-1"]
			if which == "link-local" {
				count, to = 1, w.linkLocal(t)
			}
			var open []net.Conn
			for range count {
				c, err := w.Dial("gateway", net.JoinHostPort(to, "8094"))
				must(t, err)
				defer c.Close()
				open = append(open, c)
			}
			must(t, echoes(open[0]))
			var closing sync.WaitGroup
			if which == "closing" {
				closing.Go(func() {
					for _, c := range open {
						c.Close()
						time.Sleep(2 * time.Millisecond)
					}
				})
			}
			w.deny(t)
			closing.Wait()
			time.Sleep(time.Second)
			c, err := w.Dial("node-a", fmt.Sprintf("%s:8094", addresses["shop-1"])) // the node's processes are exempt
			if err == nil {
				defer c.Close()
				err = echoes(c)
			}
			if err != nil {
				t.Errorf("the application's listener does not serve any more: %v", err)
			}
			if which == "link-local" && echoes(open[0]) == nil {
				t.Error("a link-local connection that STRICT denies stays open")
			}
		})
	}
}

// A policy that arrives resets what it denies whatever the listener is: closed since, bound to an interface, or of both
// families. A connection that the pod itself opened stays.
func TestNewPolicyResetsEveryDeniedConnection(t *testing.T) {
	t.Parallel()
	w := newWorldAll(t)
	w.serve(t, "gateway")
	closed := w.echo(t, "tcp4", ":8091", "")
	w.echo(t, "tcp4", ":8092", "eth0")
	w.echo(t, "tcp", ":8093", "")
	open := map[string]net.Conn{}
	for name, to := range map[string]string{"closed": addresses["shop-1"] + ":8091", "bound to eth0": addresses["shop-1"] + ":8092",
		"IPv4": addresses["shop-1"] + ":8093", "IPv6": v6(addresses["shop-1"]) + ":8093", "link-local": net.JoinHostPort(w.linkLocal(t), "8093")} {
		c, err := w.Dial("gateway", to)
		must(t, err)
		defer c.Close()
		must(t, echoes(c))
		open[name] = c
	}
	must(t, closed.Close())
	own, err := w.Dial("shop-1", addresses["gateway"]+":8080")
	must(t, err)
	defer own.Close()
	hear(t, own)
	w.deny(t)
	time.Sleep(time.Second)
	for name, c := range open {
		if echoes(c) == nil {
			t.Errorf("listener %s: a connection that STRICT denies stays open", name)
		}
	}
	if err := echoes(own); err != nil {
		t.Errorf("a connection that the pod opened: %v", err)
	}
}
