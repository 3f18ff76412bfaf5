package quic

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/identity"
)

// Without a certificate a client gets nowhere, whatever the TLS configuration asks for.
func TestClientCertificateIsRequired(t *testing.T) {
	r := newRig(t, rigConfig{})
	careless := r.ids.ServerTLS(serverID, nil, "h3")
	getConfig := careless.GetConfigForClient
	careless.ClientAuth = tls.NoClientCert
	careless.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		cfg, err := getConfig(hello)
		if err == nil {
			cfg = cfg.Clone()
			cfg.ClientAuth, cfg.VerifyConnection = tls.NoClientCert, nil
		}
		return cfg, err
	}
	for name, cfg := range map[string]*tls.Config{"as configured": r.ids.ServerTLS(serverID, nil, "h3"), "careless": careless} {
		t.Run(name, func(t *testing.T) {
			refused := make(chan error, 10)
			l, err := Listen(udp(t), cfg, ListenConfig{Refused: func(_ net.Addr, err error) { refused <- err }})
			check(t, err)
			defer l.Close()
			accepted := make(chan *hbone.Pipe, 1)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				p, _ := l.Accept(ctx)
				accepted <- p
			}()
			client := r.clientTLS()
			client.GetClientCertificate = nil
			client.NextProtos = []string{"h3"}
			q, err := quicgo.DialAddr(t.Context(), l.Addr().String(), client, nil)
			if err == nil {
				select {
				case <-q.Context().Done():
				case <-time.After(5 * time.Second):
					t.Error("the connection is open")
				}
			}
			cancel()
			if p := <-accepted; p != nil {
				t.Error("a client without a certificate was accepted")
			}
			select {
			case err := <-refused:
				if !strings.Contains(err.Error(), "certificate") {
					t.Errorf("refused with %v, want that the certificate is missing", err)
				}
			case <-time.After(5 * time.Second):
				t.Error("the refusal was not reported")
			}
		})
	}
}

func TestForeignTrustDomainIsRefused(t *testing.T) {
	r := newRig(t, rigConfig{})
	foreign := spiffeid.RequireTrustDomainFromString("other.example")
	ca, err := identity.InitCA(t.TempDir(), foreign)
	check(t, err)
	ids := identity.NewManager(identity.CASource{CA: ca, TTL: time.Hour}, zerolog.Nop())
	cfg, err := ids.ClientTLS(t.Context(), spiffeid.RequireFromPath(foreign, "/ns/a/sa/b"), []spiffeid.ID{serverID}, "h3")
	check(t, err)

	if _, err := Dial(t.Context(), udp(t), r.listener.Addr(), cfg, DialConfig{}); err == nil {
		t.Error("the client accepts a server of a foreign trust domain")
	}
	cfg.VerifyConnection = nil // and this one would
	p, err := Dial(t.Context(), udp(t), r.listener.Addr(), cfg, DialConfig{})
	if err == nil {
		s, err := hbone.StartClient(p, hbone.DefaultConfig())
		check(t, err)
		_, _, err = s.Open(t.Context(), &hbone.Request{Authority: "app.default:80"})
		if err == nil {
			t.Error("the server accepts a client of a foreign trust domain")
		}
		if identity.ReasonOf(err) != identity.ReasonIdentity {
			t.Errorf("got %v, want an error about the identity", err)
		}
		<-s.Closed()
	}
	if _, err := Dial(t.Context(), udp(t), r.listener.Addr(), r.wrongServer(), DialConfig{}); err == nil {
		t.Error("the client accepts a server of another identity")
	} else if wrong := (*identity.PeerError)(nil); !errors.As(err, &wrong) {
		t.Errorf("got %v, want a *identity.PeerError", err)
	}
}

func (r *rig) wrongServer() *tls.Config {
	cfg, err := r.ids.ClientTLS(context.Background(), clientID, []spiffeid.ID{clientID}, "h3")
	check(r.t, err)
	return cfg
}

// A port without a process is noticed at once.
func TestDialRefused(t *testing.T) {
	r := newRig(t, rigConfig{})
	free := udp(t)
	at := free.LocalAddr()
	free.Close()
	started := time.Now()
	_, err := Dial(t.Context(), udp(t), at, r.clientTLS(), DialConfig{})
	if !errors.Is(err, syscall.ECONNREFUSED) || time.Since(started) > 2*time.Second {
		t.Errorf("after %v: %v, want that it is refused at once", time.Since(started), err)
	}
}

// A peer whose packets are lost is silent first, and given up by PING.
func TestPeerSilent(t *testing.T) {
	r := newRig(t, rigConfig{})
	n := newNAT(t, r.listener.Addr())
	p, err := Dial(t.Context(), udp(t), n.front.LocalAddr(), r.clientTLS(), DialConfig{})
	check(t, err)
	s, err := hbone.StartClient(p, hbone.Config{PingEvery: 100 * time.Millisecond, PingTimeout: 2 * time.Second})
	check(t, err)
	st := open(t, s)
	st.Write([]byte("x"))
	_, err = io.ReadFull(st, make([]byte, 1))
	check(t, err)
	n.back.Close()
	started := time.Now()
	eventually(t, "the peer is silent", s.Silent)
	t.Logf("silent after %v", time.Since(started))
	closed(t, "the session has ended", s.Closed())
	if d := time.Since(started); d > 10*time.Second {
		t.Errorf("took %v", d)
	}
	if err := s.Err(); !errors.Is(err, hbone.ErrPingTimeout) {
		t.Errorf("ended with %v, want ping timeout", err)
	}
	if _, err := st.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("read: %v, want an error", err)
	}
}

// PINGs go to the peer, which answers them: the session knows the round trip.
func TestPingsReachPeer(t *testing.T) {
	r := newRig(t, rigConfig{client: hbone.Config{PingEvery: 20 * time.Millisecond}, server: hbone.Config{PingEvery: 20 * time.Millisecond}})
	st := open(t, r.client)
	time.Sleep(300 * time.Millisecond)
	if r.client.Err() != nil || r.server(0).Err() != nil || r.client.Silent() {
		t.Errorf("client %v, server %v", r.client.Err(), r.server(0).Err())
	}
	st.Close()
}

var _ net.Addr = (*net.UDPAddr)(nil)
