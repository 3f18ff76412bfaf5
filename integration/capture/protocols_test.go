//go:build linux

package capture

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// protocols is a mesh whose service store has a port for each protocol.
const protocols = `  - {name: store, namespace: demo, global: true, vips: ["240.240.0.5"], ports: [{name: grpc, port: 9090}, {name: ws, port: 9091}, {name: redis, port: 6379}, {name: postgres, port: 5432}]}
workloads:
  - {uid: store, namespace: demo, serviceAccount: store, network: net-b, node: node-b, addresses: [10.71.2.13], services: [store.demo.svc.cluster.local]}
`

// withStore adds it, on a host of its own.
func withStore(t *testing.T) *world {
	w := newWorld(t)
	must(t, w.Host("all", "store", "10.71.2.13"))
	w.write(t, "node-b.yaml", w.node("b", admin, "hello-1", "hello-2", "store"))
	w.write(t, "mesh.yaml", strings.Replace(mesh, "workloads:\n", protocols, 1))
	for _, host := range []string{"node-b", "node-a"} { // which read of it at their start
		must(t, w.nodes[host].Stop(syscall.SIGKILL, 5*time.Second))
		w.start(t, host)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		text, err := w.Get("gateway", admin, "/state")
		if err == nil && strings.Contains(string(text), "store") {
			return w
		}
		if time.Now().After(end) {
			t.Fatal("the gateway does not hear of the service")
		}
	}
}

const store = "240.240.0.5"

func (w *world) dialer(pod string) func(context.Context, string) (net.Conn, error) {
	return func(_ context.Context, address string) (net.Conn, error) { return w.Dial(pod, address) }
}

func TestGRPCAndWebSockets(t *testing.T) {
	t.Parallel()
	w := withStore(t)
	l, err := w.Listen("store", ":9090")
	must(t, err)
	server := grpc.NewServer()
	t.Cleanup(server.Stop)
	said := health.NewServer()
	healthpb.RegisterHealthServer(server, said)
	go server.Serve(l)
	client, err := grpc.NewClient("passthrough:///"+store+":9090", grpc.WithContextDialer(w.dialer("shop-1")), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 100 {
		if _, err := healthpb.NewHealthClient(client).Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
			t.Fatalf("a unary call: %v", err)
		}
	}
	watch, err := healthpb.NewHealthClient(client).Watch(ctx, &healthpb.HealthCheckRequest{Service: "cart"})
	must(t, err)
	for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_SERVICE_UNKNOWN, healthpb.HealthCheckResponse_NOT_SERVING, healthpb.HealthCheckResponse_SERVING} {
		if want != healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
			said.SetServingStatus("cart", want)
		}
		got, err := watch.Recv()
		if err != nil || got.Status != want {
			t.Fatalf("a stream says %v, %v, want %v", got, err, want)
		}
	}

	l, err = w.Listen("store", ":9091")
	must(t, err)
	http := &http.Server{Handler: websocket.Handler(func(c *websocket.Conn) {
		for m := ""; websocket.Message.Receive(c, &m) == nil; {
			websocket.Message.Send(c, m)
		}
	})}
	t.Cleanup(func() { http.Close() })
	go http.Serve(l)
	c, err := w.Dial("shop-1", store+":9091")
	must(t, err)
	config, err := websocket.NewConfig("ws://store.demo.mesh.internal:9091/", "http://shop/")
	must(t, err)
	ws, err := websocket.NewClient(config, c)
	must(t, err)
	defer ws.Close()
	ws.SetDeadline(time.Now().Add(10 * time.Second))
	for _, size := range []int{1, 125, 65536, 1 << 20} {
		sent, got := strings.Repeat("x", size), ""
		must(t, websocket.Message.Send(ws, sent))
		if err := websocket.Message.Receive(ws, &got); err != nil || got != sent {
			t.Fatalf("of a message of %d bytes %d came back, %v", size, len(got), err)
		}
	}
}

// run runs a program of this machine in a pod.
func (w *world) runs(t *testing.T, pod string, args ...string) string {
	t.Helper()
	cmd := exec.Command("ip", append([]string{"netns", "exec", filepath.Base(w.Path(pod))}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v in %s: %v\n%s", args, pod, err, out)
	}
	return string(out)
}

// Databases as people run them: where they are installed, and where STORES is set in any case.
func TestRedisAndPostgreSQL(t *testing.T) {
	t.Parallel()
	postgres, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	_, err := exec.LookPath("redis-server")
	if err != nil || len(postgres) == 0 {
		if os.Getenv("STORES") != "" {
			t.Fatal("redis-server or PostgreSQL is not installed: apt-get install redis postgresql")
		}
		t.Skip("redis-server or PostgreSQL is not installed: STORES=yes insists on them")
	}
	w := withStore(t)
	redis := &netspace.Process{Host: "store", Args: []string{"redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--dir", w.Dir}, Log: w.file("redis.log")}
	must(t, w.Start(redis, w.Accepts("store", "127.0.0.1:6379")))
	if got := w.runs(t, "shop-1", "redis-cli", "-h", store, "set", "k", "v"); got != "OK\n" {
		t.Errorf("redis says %q", got)
	}
	out := w.runs(t, "shop-1", "redis-benchmark", "-h", store, "-t", "set,get", "-n", "5000", "-c", "20", "-P", "8", "-q")
	if !strings.Contains(out, "GET") || !strings.Contains(out, "requests per second") {
		t.Errorf("redis-benchmark says %q", out)
	}

	data, err := os.MkdirTemp("", "isthmus-postgres")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(data) })
	must(t, exec.Command("chown", "postgres", data).Run())
	as := func(args ...string) []string { return append([]string{"runuser", "-u", "postgres", "--"}, args...) }
	bin := postgres[len(postgres)-1]
	if out, err := exec.Command("runuser", as(bin+"/initdb", "-D", data, "-A", "trust")[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	must(t, os.WriteFile(data+"/pg_hba.conf", []byte("host all all all trust\n"), 0o644))
	db := &netspace.Process{Host: "store", Args: as(bin+"/postgres", "-D", data, "-c", "listen_addresses=*", "-c", "unix_socket_directories="), Log: w.file("postgres.log")}
	must(t, w.Start(db, w.Accepts("store", "127.0.0.1:5432")))
	t.Cleanup(func() { db.Stop(syscall.SIGINT, 5*time.Second) })
	psql := func(sql string) string {
		t.Helper()
		return strings.TrimSpace(w.runs(t, "shop-1", "psql", "-h", store, "-U", "postgres", "-Atc", sql))
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		cmd := exec.Command("ip", "netns", "exec", filepath.Base(w.Path("store")), bin+"/pg_isready", "-h", "127.0.0.1")
		if cmd.Run() == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("PostgreSQL does not get ready")
		}
	}
	psql("create table t as select generate_series(1, 100000) as n")
	if got := psql("select sum(n) from t"); got != "5000050000" {
		t.Errorf("PostgreSQL says %q", got)
	}
	if got := psql("copy t to stdout"); strings.Count(got, "\n") != 99999 {
		t.Errorf("%d lines were copied, want 100000", strings.Count(got, "\n")+1)
	}
	if t.Failed() {
		t.Log(netspace.Tail(w.file("postgres.log")))
	}
}
