package pathcheck

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/quic"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/meshtest/trust"
)

// bound returns a UDP socket that never answers.
func bound(t *testing.T) (*net.UDPConn, netip.AddrPort) {
	t.Helper()
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	return socket, socket.LocalAddr().(*net.UDPAddr).AddrPort()
}

// serveQUIC accepts sessions of clients of the domain of ids.
func serveQUIC(t *testing.T, ids *identity.Manager) netip.AddrPort {
	t.Helper()
	socket, at := bound(t)
	l, err := quic.Listen(socket, ids.ServerTLS(trust.Workload("gateway"), nil, quic.Protocols(hbone.ServerProtocols("gw"))...), quic.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			p, err := l.Accept(t.Context())
			if err != nil {
				return
			}
			go hbone.NewServer(p, hbone.DefaultConfig(), func(_ context.Context, in *hbone.Incoming) { Respond(in) }).Serve(t.Context())
		}
	}()
	t.Cleanup(l.Shutdown)
	return at
}

func clientTLS(t *testing.T, ids *identity.Manager, own, expected spiffeid.ID) *tls.Config {
	t.Helper()
	cfg, err := ids.ClientTLS(t.Context(), own, []spiffeid.ID{expected}, hbone.ClientProtocols("gw")...)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestQUICTellsFailuresApart(t *testing.T) {
	ids := trust.NewManager(t)
	foreign := spiffeid.RequireTrustDomainFromString("other.example")
	ca, err := identity.InitCA(t.TempDir(), foreign)
	if err != nil {
		t.Fatal(err)
	}
	own, gateway := trust.Workload("client"), trust.Workload("gateway")
	well := clientTLS(t, ids, own, gateway)
	other := clientTLS(t, ids, own, trust.Workload("other"))
	stranger := clientTLS(t, identity.NewManager(identity.CASource{CA: ca, TTL: time.Hour}, zerolog.Nop()), spiffeid.RequireFromPath(foreign, "/ns/a/sa/b"), gateway)
	stranger.VerifyConnection = nil // the gateway's rejection is what is left

	served := serveQUIC(t, ids)
	unanswering, silent := bound(t)
	unused, closed := bound(t)
	unused.Close()
	mute, h3 := bound(t) // reads, and answers with bytes that are not QUIC
	go func() {
		b := make([]byte, 2000)
		for {
			_, from, err := mute.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			mute.WriteToUDPAddrPort([]byte("no QUIC"), from)
		}
	}()
	for _, c := range []struct {
		name    string
		to      netip.AddrPort
		tls     *tls.Config
		failure answer.UDPFailure
		err     string
	}{
		{"served", served, well, "", ""},
		{"port closed", closed, well, answer.UDPRefused, "connection refused"},
		{"no response", silent, well, answer.UDPSilent, "no response in 3s"},
		{"no QUIC", h3, well, answer.UDPSilent, "no response in 3s"},
		{"another identity", served, other, answer.UDPNoQUIC, "/sa/other"},
		{"certificate rejected", served, stranger, answer.UDPNoQUIC, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			goroutines, sockets := runtime.NumGoroutine(), openSockets(t)
			began := time.Now()
			u, err := QUIC(t.Context(), c.to, c.tls)
			took := time.Since(began)
			t.Logf("%v: %+v, %v", took, u, err)
			if err != nil {
				t.Fatal(err)
			}
			if u.Failure != c.failure || !strings.Contains(u.Error, c.err) || (u.HandshakeMS > 0) != (c.failure == "") || u.PacketBytes != 1228 {
				t.Errorf("%+v, want failure %q and error %q", u, c.failure, c.err)
			}
			if took > quicTime+time.Second {
				t.Errorf("it took %v, want at most %v", took, quicTime)
			}
			if n := openSockets(t); n > sockets {
				t.Errorf("%d sockets are open, %d before", n, sockets)
			}
			trust.Eventually(t, "its goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines })
		})
	}
	unanswering.SetReadDeadline(time.Now().Add(time.Second))
	if n, err := unanswering.Read(make([]byte, 2000)); n != quic.PacketSize {
		t.Errorf("the first packet of a handshake has %d bytes (%v), want %d as findings name it", n, err, quic.PacketSize)
	}
}

func TestQUICEndsWithItsContext(t *testing.T) {
	ids := trust.NewManager(t)
	_, silent := bound(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	u, err := QUIC(ctx, silent, clientTLS(t, ids, trust.Workload("client"), trust.Workload("gateway")))
	if took := time.Since(began); u != nil || err == nil || took > quicTime/2 {
		t.Errorf("%+v, %v after %v; want an error in time, which proves nothing about the path", u, err, took)
	}
}

// openSockets returns how many sockets this process has open.
func openSockets(t *testing.T) (n int) {
	t.Helper()
	const dir = "/proc/self/fd"
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Skipf("open sockets cannot be counted: %v", err)
	}
	for _, e := range list {
		if to, err := os.Readlink(dir + "/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}
