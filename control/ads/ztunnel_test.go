package ads

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/identity/istioca"
	"github.com/isthmus-mesh/isthmus/integration/stock"
	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

const (
	addressType       = "type.googleapis.com/istio.workload.Address"
	authorizationType = "type.googleapis.com/istio.security.Authorization"
)

func bytesField(b []byte, n protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), v)
}

func varintField(b []byte, n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}

// istioWorkload is an istio.workload.Address of a pod with the service demo/pay.
func istioWorkload(name, address, node string, unhealthy bool) Resource {
	uid, ip := "c1//v1/Pod/demo/"+name, netip.MustParseAddr(address).As4()
	b := bytesField(nil, 1, name)
	for n, v := range map[protowire.Number]string{2: "demo", 3: string(ip[:]), 4: "net-a", 6: "cluster.local", 7: name, 9: node, 20: uid} {
		b = bytesField(b, n, v)
	}
	b = varintField(b, 5, 1) // HBONE
	if unhealthy {
		b = varintField(b, 17, 1)
	}
	return Resource{Name: uid, Aliases: []string{"net-a/" + address}, Groups: []string{"node/" + node}, Body: bytesField(nil, 1, string(b))}
}

// TestStockZtunnel feeds a stock ztunnel. It needs root and ZTUNNEL, its binary.
func TestStockZtunnel(t *testing.T) {
	binary := os.Getenv("ZTUNNEL")
	if binary == "" {
		t.Skip("set ZTUNNEL=<binary of a stock ztunnel> to run it")
	}
	for _, onDemand := range []bool{false, true} {
		t.Run(fmt.Sprintf("on demand %v", onDemand), func(t *testing.T) { feedZtunnel(t, binary, onDemand) })
	}
}

func feedZtunnel(t *testing.T, binary string, onDemand bool) {
	space, err := netspace.New("ads")
	if err != nil {
		t.Fatal(err)
	}
	defer space.Close()
	if err := space.Segment("all", map[string][]string{"box-1": {"10.72.1.2"}, "outside": {"10.72.1.77"}}); err != nil {
		t.Fatal(err)
	}
	outside, err := space.Listen("outside", "10.72.1.77:80") // not in the mesh
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := outside.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	ca, err := identity.InitCA(filepath.Join(space.Dir, "ca"), spiffeid.RequireTrustDomainFromString("cluster.local"))
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := istioca.New(ca, time.Hour, nil, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	caListener, err := space.Listen("box-1", stock.CA)
	if err != nil {
		t.Fatal(err)
	}
	go issuer.Serve(t.Context(), caListener)

	cert, err := ca.ServerCertificate([]string{"localhost"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	claims := make(chan Claim, 100)
	server := NewServer(ServerConfig{Types: []string{addressType, authorizationType}, Gateway: "g1", Instance: "1", Authenticate: func(_ context.Context, c Claim) (Proof, error) {
		claims <- c
		return Proof{Identity: c.NodeID, Keys: map[string][]string{addressType: {"node/" + c.Metadata["NODE_NAME"]}}}, nil
	}})
	send := func(u Update) {
		t.Helper()
		u.Type = addressType
		if err := server.Apply(u); err != nil {
			t.Fatal(err)
		}
	}
	send(Update{Resources: []Resource{istioWorkload("shop", "10.72.1.2", "box-1", false), istioWorkload("pay", "10.72.1.9", "box-2", false)}})
	serve := func() (stop func()) {
		l, err := space.Listen("box-1", "127.0.0.1:15010")
		if err != nil {
			t.Fatal(err)
		}
		g := grpc.NewServer(append(server.Options(), grpc.Creds(credentials.NewServerTLSFromCert(cert)))...)
		server.Register(g)
		go g.Serve(l)
		return g.Stop
	}
	stop := serve()
	defer func() { stop() }()
	env := slices.DeleteFunc(stock.Environment("box-1", "demo/shop/shop", "net-a", "info"), func(e string) bool { return strings.HasPrefix(e, "LOCAL_XDS") })
	zt := &netspace.Process{Host: "box-1", Args: []string{binary}, Log: filepath.Join(space.Dir, "ztunnel.log"), Env: append(env,
		"XDS_ADDRESS=https://localhost:15010", "XDS_ROOT_CA=ca/ca.pem", fmt.Sprintf("XDS_ON_DEMAND=%v", onDemand))}
	if err := space.Start(zt, space.Ready("box-1", stock.Ready)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(netspace.Tail(zt.Log))
		}
	})
	defer zt.Stop(os.Kill, 5*time.Second)
	if c := <-claims; c.Token != "unused" || c.Metadata["NODE_NAME"] != "box-1" || c.TLS == nil || !strings.HasPrefix(c.NodeID, "ztunnel~") {
		t.Errorf("claim %+v", c)
	}
	dump := func() string {
		b, err := space.Get("box-1", "127.0.0.1:15000", "/config_dump")
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	within := func(what string, holds func(dump string) bool) {
		t.Helper()
		start := time.Now()
		for !holds(dump()) {
			if time.Since(start) > 3*time.Second {
				t.Fatalf("not within 3 s: %s\n%s", what, dump())
			}
			time.Sleep(5 * time.Millisecond)
		}
		t.Logf("%s: %v", what, time.Since(start))
	}
	has := func(name string) func(string) bool {
		return func(dump string) bool { return strings.Contains(dump, `"uid": "c1//v1/Pod/demo/`+name+`"`) }
	}
	not := func(f func(string) bool) func(string) bool { return func(dump string) bool { return !f(dump) } }
	within("the pod of the node is known", has("shop"))
	if onDemand {
		if has("pay")(dump()) {
			t.Error("a workload was sent without a request")
		}
		connect := func(address byte, patience time.Duration) time.Duration {
			start := time.Now()
			c, err := space.Dial("box-1", stock.Socks)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.Write([]byte{5, 1, 0, 5, 1, 0, 1, 10, 72, 1, address, 0, 80}) // SOCKS5 CONNECT to port 80
			c.SetReadDeadline(start.Add(patience))
			for b := make([]byte, 64); ; {
				if _, err := c.Read(b); err != nil {
					return time.Since(start)
				}
			}
		}
		connect(9, 300*time.Millisecond)
		within("a workload is sent on demand", has("pay"))
		if took := connect(77, 3*time.Second); took > time.Second {
			t.Errorf("a connection to an address without a workload took %v", took)
		}
	}
	within("a workload of another pod is known", has("pay"))
	send(Update{Resources: []Resource{istioWorkload("pay", "10.72.1.9", "box-2", true)}})
	within("unhealthy", func(dump string) bool { return strings.Contains(dump, `"status": "Unhealthy"`) })

	before := testutil.ToFloat64(server.cfg.Metrics.Resources)
	stop()
	stop = serve()
	<-claims
	send(Update{Resources: []Resource{istioWorkload("shop", "10.72.1.2", "box-1", true)}})
	within("a change after the restart of the server", func(dump string) bool { return strings.Count(dump, `"status": "Unhealthy"`) == 2 })
	if n := testutil.ToFloat64(server.cfg.Metrics.Resources) - before; n != 1 {
		t.Errorf("%v resources were sent after the restart; want 1", n)
	}
	send(Update{Removed: []string{"c1//v1/Pod/demo/pay"}})
	within("a removed workload is gone", not(has("pay")))
	if n := testutil.ToFloat64(server.cfg.Metrics.NACKs); n != 0 {
		t.Errorf("%v responses were rejected", n)
	}
}
