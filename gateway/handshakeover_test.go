package gateway

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestAHandshakeIsOverWhenThePodAnswersTwice(t *testing.T) {
	for name, c := range map[string]struct {
		retries bool
		handed  []int64 // at each reply of the pod
		over    int     // the reply that ends it, from 1; 0: none
	}{
		"flight, SETTINGS":                    {false, []int64{0, 500}, 2},
		"flight in pieces, SETTINGS":          {false, []int64{0, 0, 0, 500}, 4},
		"another hello wanted, not more":      {true, []int64{0, 600}, 0},
		"another hello, its flight, SETTINGS": {true, []int64{0, 600, 600, 1100}, 4},
		"nothing from the client":             {false, []int64{0, 0, 0}, 0},
		"a hello that was passed on as it is": {false, []int64{300, 300, 900}, 3},
	} {
		i := newInnerHandshakes(defaultLimits().Inner, prometheus.NewRegistry())
		slot, _ := i.queue.Enter(1, "a")
		h, over := &innerHandshake{slot: slot, retries: c.retries}, 0
		for n, handed := range c.handed {
			if over == 0 && h.replied(handed) {
				over = n + 1
			}
			if held, _ := i.queue.Counts(); (held == 0) != (over > 0) {
				t.Errorf("%s: %d held after reply %d", name, held, n+1)
			}
		}
		if over != c.over {
			t.Errorf("%s: over at reply %d, want %d", name, over, c.over)
		}
	}
}

// What a TLS server of today sends when it wants another group than the client offered
// a share of.
func TestARequestForAnotherHelloIsSeen(t *testing.T) {
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	cert, err := x509.CreateCertificate(nil, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{}, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		group tls.CurveID // of the server
		want  bool
	}{"its own group": {tls.X25519, false}, "another group": {tls.CurveP256, true}} {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			tls.Server(conn, &tls.Config{CurvePreferences: []tls.CurveID{c.group}, Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}}).Handshake()
		}()
		conn, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.Write(hello(t, tls.X25519, tls.CurveP256))
		if err := awaitByte(t.Context(), conn.(*net.TCPConn), 20*time.Second); err != nil {
			t.Fatal(err)
		}
		for range 2 { // it is still there
			if got := asksForAnotherHello(conn.(*net.TCPConn)); got != c.want {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
		}
	}
}
