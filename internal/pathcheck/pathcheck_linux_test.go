package pathcheck

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/netspace"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
	"github.com/isthmus-mesh/isthmus/internal/wan"
)

const gatewayAddress = "10.72.0.2:15008"

// far has a client and a gateway with a link between them.
type far struct {
	*netspace.Space
	link *wan.Link
}

func newFar(t *testing.T) *far {
	netspace.NeedRoot(t)
	space, err := netspace.New("path")
	t.Cleanup(func() { space.Close() })
	f := &far{Space: space}
	if err == nil {
		err = f.Segment("a", map[string][]string{"client": {"10.72.0.1"}})
	}
	if err == nil {
		err = f.Segment("b", map[string][]string{"gateway": {"10.72.0.2"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	a, err := f.Tap("a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := f.Tap("b")
	if err != nil {
		t.Fatal(err)
	}
	f.link = wan.Join(a, b, wan.Conditions{}, 1)
	t.Cleanup(f.link.Close)
	f.serve(t)
	return f
}

// serve answers checks at gatewayAddress.
func (f *far) serve(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "gateway"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"h2"}}
	l, err := f.Listen("gateway", gatewayAddress)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				transport, err := hbone.ServerTLS(ctx, conn, cfg)
				if err != nil {
					return
				}
				hbone.NewServer(transport, hbone.DefaultConfig(), func(_ context.Context, in *hbone.Incoming) {
					if in.Authority == header.SinkAuthority {
						Sink(in)
						return
					}
					Respond(in)
				}).Serve(t.Context())
			}()
		}
	}()
}

// target is the gateway, dialed with lines.maxSegment.
func (f *far) target(maxSegment int) Target {
	return Target{
		Dial: func(ctx context.Context, segment int) (conn net.Conn, err error) {
			d := net.Dialer{Control: tcp.Line{MaxSegment: cmp.Or(segment, maxSegment)}.Control}
			err = f.In("client", func() error {
				conn, err = d.DialContext(ctx, "tcp", gatewayAddress)
				return err
			})
			return conn, err
		},
		TLS: func(ctx context.Context, conn net.Conn) (*hbone.TLSTransport, error) {
			return hbone.ClientTLS(ctx, conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		},
	}
}

func TestFullSizeFindsDroppedPackets(t *testing.T) {
	f := newFar(t)
	for _, c := range []struct {
		name              string
		there, back       int // largest packet that passes. 0: all
		maxSegment        int // as configured
		want              int // remedy
		packet            int
		thereDrop, failed bool
		timestamps        string // net.ipv4.tcp_timestamps
	}{
		{name: "all pass", packet: 1500},
		{name: "over 1300", there: 1300, back: 1300, want: 1260, packet: 1300, thereDrop: true},
		{name: "over 1300, with the remedy", there: 1300, back: 1300, maxSegment: 1260, packet: 1300},
		{name: "over 1300, without timestamps", there: 1300, back: 1300, want: 1260, packet: 1300, thereDrop: true, timestamps: "0"},
		{name: "over 1499 back", back: 1499, want: 1459, packet: 1499},
		{name: "over 500", there: 500, failed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.link.There.Set(wan.Conditions{Most: c.there})
			f.link.Back.Set(wan.Conditions{Most: c.back})
			if err := f.In("client", func() error {
				return os.WriteFile("/proc/sys/net/ipv4/tcp_timestamps", []byte(cmp.Or(c.timestamps, "1")), 0o644)
			}); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			path, err := f.target(c.maxSegment).FullSize(t.Context())
			t.Logf("%v: %+v, %v", time.Since(began).Round(time.Millisecond), path, err)
			if c.failed {
				if err == nil || !strings.Contains(err.Error(), "TCP connects, no response in time") {
					t.Errorf("%v, want that no response arrived", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if path.MaxSegment != c.want || path.There.PacketBytes != c.packet || path.Back.PacketBytes != c.packet {
				t.Errorf("%+v, want lines.maxSegment %d and packets of %d bytes", path, c.want, c.packet)
			}
			if dropped := c.want > 0; path.There.Dropped != (dropped && c.thereDrop) || path.Back.Dropped != (dropped && !c.thereDrop) {
				t.Errorf("%+v, want packets dropped there: %v", path, c.thereDrop)
			}
		})
	}
}

func TestMeasureCountsLostSegments(t *testing.T) {
	f := newFar(t)
	f.link.There.Set(wan.Conditions{Delay: 10 * time.Millisecond, Loss: 0.05})
	f.link.Back.Set(wan.Conditions{Delay: 10 * time.Millisecond})
	before := runtime.NumGoroutine()
	path, err := f.target(0).Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(path)
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines run after a check, %d before", n, before)
	}
	if got := path.There.Loss(); got < 0.01 || got > 0.12 || path.Back.Lost > 1 || path.RTTMS < 20 || path.RTTMS > 100 {
		t.Errorf("%+v, want 5 %% lost to the gateway, none from it, and 20 ms", path)
	}
}

func TestThroughputIsThatOfOneConnection(t *testing.T) {
	f := newFar(t)
	began := time.Now()
	bits, err := f.target(0).Throughput(t.Context(), 0)
	if took := time.Since(began); err != nil || bits < 1e6 || took > flowTime+2*time.Second {
		t.Errorf("%.0f bits per second after %v, %v", bits, took, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began = time.Now()
	if _, err := f.target(0).Throughput(ctx, 0); err == nil || time.Since(began) > time.Second {
		t.Errorf("%v after %v, want an error when the context ends", err, time.Since(began))
	}
}
