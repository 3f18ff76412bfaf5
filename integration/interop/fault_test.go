package interop

import (
	"net"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

// held is an echo connection that a test keeps open.
type held struct {
	cell
	net.Conn
}

// hold opens one echo connection for each way; they are closed with the test.
func hold(t *testing.T, keep func(cell) bool) (all []held) {
	t.Helper()
	for _, c := range cells(keep) {
		conn, err := here.open(c, verbEcho)
		if err == nil {
			t.Cleanup(func() { conn.Close() })
			err = echo(conn, "held")
		}
		if err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		all = append(all, held{c, conn})
	}
	return all
}

// works fails the test if one of n new connections does.
func works(t *testing.T, c cell, n int) {
	t.Helper()
	for i := range n {
		if got, err := here.who(c); err != nil || got != c.server {
			t.Fatalf("%v: connection %d of %d: %q: %v", c, i+1, n, got, err)
		}
	}
}

// recovers waits until a new connection works.
func recovers(t *testing.T, c cell) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var got string
		if got, err = here.who(c); err == nil && got == c.server {
			return
		}
	}
	t.Errorf("%v does not work again within %v: %v", c, patience, err)
}

// refused expects a connection to end with no byte, as SOCKS5 refusal or after
// a yes.
func refused(t *testing.T, c cell) {
	t.Helper()
	begin := time.Now()
	conn, err := here.open(c, verbWho)
	if err == nil {
		defer conn.Close()
		err = ends(conn)
	} else if !strings.Contains(err.Error(), "SOCKS5 reply") && !strings.Contains(err.Error(), "reset by peer") {
		t.Errorf("%v: %v", c, err)
		return
	} else {
		err = nil
	}
	if took := time.Since(begin); err != nil || took > patience {
		t.Errorf("%v: after %v: %v", c, took.Round(time.Millisecond), err)
	}
}

func TestApplicationRefuses(t *testing.T) {
	matrix(t, every, func(t *testing.T, c cell) {
		others := hold(t, every)
		before := here.beliefs(t)
		for range 5 {
			refused(t, c.at(81))
		}
		for _, o := range others {
			if err := echo(o, "still here"); err != nil {
				t.Errorf("%v while %v was refused: %v", o.cell, c, err)
			}
			works(t, o.cell, 3)
		}
		after := here.beliefs(t)
		for i := range after {
			delete(before[i].Ports, "8081") // that one may be ejected
			delete(after[i].Ports, "8081")
		}
		if !reflect.DeepEqual(before, after) {
			t.Errorf("the gateway believes %+v, and before port 8081 refused %+v", after, before)
		}
	})
}

func TestServiceThatTheGatewayDoesNotKnow(t *testing.T) {
	need(t)
	others := hold(t, every)
	for _, client := range []string{"client-ours", "client-stock"} {
		refused(t, cell{client, "ghost", "far", vip("ghost", 80)})
	}
	for _, o := range others {
		if err := echo(o, "still here"); err != nil {
			t.Errorf("%v: %v", o.cell, err)
		}
	}
}

func TestServerIsKilled(t *testing.T) {
	need(t)
	for _, server := range []string{"ours", "stock"} {
		t.Run(server, func(t *testing.T) {
			all := hold(t, every)
			p := here.proxies["server-"+server]
			if err := p.Stop(syscall.SIGKILL, 5*time.Second); err != nil {
				t.Fatal(err)
			}
			for _, h := range all {
				if h.server != server {
					if err := echo(h, "still here"); err != nil {
						t.Errorf("%v: %v", h.cell, err)
					}
				} else if err := ends(h); err != nil {
					t.Errorf("%v: %v", h.cell, err)
				}
			}
			if err := here.Start(p, here.ready(p)); err != nil {
				t.Fatal(err)
			}
			for _, h := range all {
				recovers(t, h.cell)
			}
		})
	}
}

func TestGatewayDrains(t *testing.T) {
	need(t)
	all := hold(t, every)
	gateway := here.gateway
	gateway.Signal(syscall.SIGTERM)
	time.Sleep(500 * time.Millisecond)
	for _, h := range all {
		if err := echo(h, strings.Repeat("while it drains ", 1<<12)); err != nil {
			t.Errorf("%v: %v", h.cell, err)
		}
		h.Close()
	}
	begin := time.Now()
	select {
	case <-gateway.Ended():
		if code := gateway.State().ExitCode(); code != 0 {
			t.Errorf("the gateway ends with code %d", code)
		}
	case <-time.After(drainTimeout):
		t.Error("the gateway waits for streams that have ended")
		gateway.Stop(os.Kill, 5*time.Second)
	}
	t.Logf("the gateway ends %v after its last stream", time.Since(begin).Round(time.Millisecond))
	restartGateway(t)
}

func TestGatewayIsKilled(t *testing.T) {
	need(t)
	all := hold(t, every)
	if err := here.gateway.Stop(os.Kill, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		if !double(h.cell) {
			if err := echo(h, "still here"); err != nil {
				t.Errorf("%v: %v", h.cell, err)
			}
		} else if err := ends(h); err != nil {
			t.Errorf("%v: %v", h.cell, err)
		}
	}
	restartGateway(t)
}

func TestGatewayWithAnotherIdentityIsRefused(t *testing.T) {
	need(t)
	if err := here.gateway.Stop(os.Kill, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := here.startGateway("impostor.yaml"); err != nil {
		t.Fatal(err)
	}
	for _, c := range cells(double) {
		refused(t, c)
	}
	metrics, err := here.Get("gateway", ourAdmin, "/metrics")
	if err != nil || !strings.Contains(string(metrics), "\nistio_tcp_connections_opened_total 0\n") {
		t.Errorf("a stream was opened through the impostor (%v)\n%s", err, metrics)
	}
	if err := here.gateway.Stop(os.Kill, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	restartGateway(t)
}

// restartGateway starts it and waits until all ways work again.
func restartGateway(t *testing.T) {
	t.Helper()
	if err := here.startGateway("gateway.yaml"); err != nil {
		t.Fatal(err)
	}
	for _, c := range cells(every) {
		recovers(t, c)
	}
}
