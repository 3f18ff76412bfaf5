package interop

import (
	"errors"
	"io"
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
	matrix(t, every, func(t *testing.T, c cell) { leavesOthersAlone(t, c, 81) })
}

// Our server has no policies: port 82 is denied by stock ones only.
func TestPolicyDenies(t *testing.T) {
	matrix(t, every, func(t *testing.T, c cell) {
		if c.server == "ours" {
			works(t, c.at(82), 1)
			return
		}
		leavesOthersAlone(t, c, 82)
	})
}

// leavesOthersAlone asks for a port that the server turns down, and expects that
// nobody else feels it.
func leavesOthersAlone(t *testing.T, c cell, port uint16) {
	t.Helper()
	others := hold(t, every)
	before := here.beliefs(t)
	for range 5 {
		refused(t, c.at(port))
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
		t.Errorf("the gateway believes %+v, and before port %d was turned down %+v", after, port, before)
	}
}

// A stock proxy makes an end of a reset; between two of ours it stays one.
func TestApplicationResets(t *testing.T) {
	matrix(t, every, func(t *testing.T, c cell) {
		others := hold(t, every)
		ours := c.client == "client-ours" && c.server == "ours"

		conn := must(here.open(c, verbReset))(t) // the server's does
		if _, err := io.ReadFull(conn, make([]byte, len(farewell))); err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte("x"))
		if err := endOf(conn); err != nil && !errors.Is(err, syscall.ECONNRESET) || ours && err == nil {
			t.Errorf("after the server's reset the client hears %v", err)
		}
		conn.Close()

		conn = must(here.open(c, verbTell))(t) // the client's does
		conn.Write([]byte("x"))
		time.Sleep(100 * time.Millisecond)
		conn.SetLinger(0)
		conn.Close()
		select {
		case got := <-here.app.left:
			if got.bytes != 1 || got.err != nil && !errors.Is(got.err, syscall.ECONNRESET) || ours && got.err == nil {
				t.Errorf("after the client's reset the server has %d bytes and hears %v", got.bytes, got.err)
			}
		case <-time.After(patience):
			t.Error("the server never hears of the client's reset")
		}
		for _, o := range others {
			if err := echo(o, "still here"); err != nil {
				t.Errorf("%v: %v", o.cell, err)
			}
		}
	})
}

// endOf is how a connection ends: nil is a FIN.
func endOf(c net.Conn) error {
	c.SetDeadline(time.Now().Add(patience))
	_, err := io.Copy(io.Discard, c)
	return err
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

func TestServerIsStopped(t *testing.T) {
	need(t)
	for _, server := range []string{"ours", "stock"} {
		t.Run(server, func(t *testing.T) {
			all := hold(t, every)
			p := here.proxies["server-"+server]
			p.Signal(syscall.SIGTERM)
			time.Sleep(500 * time.Millisecond)
			for _, h := range all {
				if err := echo(h, strings.Repeat("while it drains ", 1<<10)); err != nil {
					t.Errorf("%v: %v", h.cell, err)
				}
				if h.server == server {
					h.Close()
				}
			}
			begin := time.Now()
			select {
			case <-p.Ended():
				if code := p.State().ExitCode(); code != 0 {
					t.Errorf("the server ends with code %d", code)
				}
				t.Logf("the server ends %v after its last stream", time.Since(begin).Round(time.Millisecond))
			case <-time.After(drainTimeout):
				t.Error("the server waits for streams that have ended")
				p.Stop(syscall.SIGKILL, 5*time.Second)
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

// goAwayRace is what a stock client says when our GOAWAY reaches it after it has
// taken a session from its pool and before it has put the stream on it. It does
// not try again, and nothing that we send or leave out can help: 1 connection in 28
// hand-overs at 200/s, on a busy machine.
const goAwayRace = `error="h2 failed: connection error received: not a result of an error"`

// A stock client knows one gateway of a network. For an upgrade a second process
// listens on the same address (reusePort) before the first one drains.
func TestGatewayHandsOverUnderLoad(t *testing.T) {
	need(t)
	for _, c := range cells(func(c cell) bool { return double(c) && c.client == "client-stock" }) {
		t.Run(c.String(), func(t *testing.T) {
			log := here.proxies[c.client].Log
			races := occurrences(t, log, goAwayRace)
			l := startLoad(t, c, loadRate)
			begin := time.Now()
			for _, next := range []struct{ config, admin string }{{"gateway-2.yaml", secondAdmin}, {"gateway.yaml", ourAdmin}} {
				time.Sleep(time.Second)
				old := here.gateway
				here.gateway = here.newGateway(next.config)
				if err := here.Start(here.gateway, here.Ready("gateway", next.admin)); err != nil {
					t.Fatal(err)
				}
				if err := old.Stop(syscall.SIGTERM, drainTimeout+5*time.Second); err != nil {
					t.Error(err)
				} else if code := old.State().ExitCode(); code != 0 {
					t.Errorf("the old gateway ends with code %d", code)
				}
			}
			time.Sleep(time.Second)
			end := time.Now()
			l.end()
			all, lost := l.between(begin, end)
			races = occurrences(t, log, goAwayRace) - races
			t.Logf("two hand-overs: %d of %d connections lost at %d/s, %d of them inside the client; slowest %v", len(lost), len(all), loadRate, races, slowest(all))
			if races > 2 || len(lost) > races || len(all) < loadRate {
				t.Errorf("%d of %d connections were lost, the first: %v", len(lost), len(all), first(lost))
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
	if err != nil || !strings.Contains(string(metrics), "\nisthmus_tunnels_opened_total 0\n") {
		t.Errorf("a stream was opened through the impostor (%v)\n%s", err, metrics)
	}
	if err := here.gateway.Stop(os.Kill, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	restartGateway(t)
}

func occurrences(t *testing.T, file, what string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	check(t, err)
	return strings.Count(string(text), what)
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
