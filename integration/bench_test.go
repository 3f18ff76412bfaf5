package integration

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// path is a mesh of real processes for benchmarks: a client pod on east, one
// pod on another node of east (single HBONE) and one on west (double HBONE).
type path struct {
	roles  map[string]*exec.Cmd // client, near, gateway, far
	single string               // where a client dials to reach the near pod
	double string
}

const benchMesh = `
networks: [{name: east}, {name: west}]
gateways:
  - {name: gw-1, network: west, address: "127.21.2.1:15008", serviceAccount: isthmus-system/gateway-west}
services:
  - {name: near, ports: [{port: 80, targetPort: 8080}]}
  - {name: far, global: true, ports: [{port: 80, targetPort: 8080}]}
workloads:
  - {uid: shop, name: shop, serviceAccount: shop, network: east, node: client, addresses: [127.21.1.10]}
  - {uid: near-1, name: near-1, serviceAccount: near, network: east, node: near, addresses: [127.21.1.20], services: [near.default.svc.cluster.local]}
  - {uid: far-1, name: far-1, serviceAccount: far, network: west, node: far, addresses: [127.21.2.20], services: [far.default.svc.cluster.local]}
`

func startPath(b *testing.B) *path {
	dir := b.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	common := "discovery: {file: mesh.yaml}\nidentity: {source: ca, dir: ca}\nlog: {level: warn, format: json}\n"
	write("mesh.yaml", benchMesh)
	write("gateway.yaml", "name: gw-1\nnetwork: west\nadmin: {address: \"127.21.2.1:15000\"}\n"+common)
	write("near.yaml", "node: near\nnetwork: east\nadmin: {address: \"127.21.1.3:15000\"}\n"+common)
	write("far.yaml", "node: far\nnetwork: west\nadmin: {address: \"127.21.2.3:15000\"}\n"+common)
	write("client.yaml", "node: client\nnetwork: east\nadmin: {address: \"127.21.1.2:15000\"}\n"+common+`
outbound:
  - {workload: shop, listen: "127.21.1.10:8001", to: "near.default.svc.cluster.local:80"}
  - {workload: shop, listen: "127.21.1.10:8002", to: "far.default.svc.cluster.local:80"}
`)
	run(b, dir, "isthmus", "ca", "init", "--dir", "ca", "--trust-domain", "cluster.local")
	p := &path{roles: map[string]*exec.Cmd{}, single: "127.21.1.10:8001", double: "127.21.1.10:8002"}
	for role, admin := range map[string]string{"gateway": "127.21.2.1", "near": "127.21.1.3", "far": "127.21.2.3", "client": "127.21.1.2"} {
		program := "nodeproxy"
		if role == "gateway" {
			program = "gateway"
		}
		cmd := exec.Command(filepath.Join(bin, program), "--config", role+".yaml")
		cmd.Dir, cmd.Stderr = dir, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		p.roles[role] = cmd
		b.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		awaitReady(b, admin)
	}
	for _, addr := range []string{"127.21.1.20:8080", "127.21.2.20:8080"} {
		serveApp(b, addr)
	}
	return p
}

func run(b *testing.B, dir, program string, args ...string) {
	cmd := exec.Command(filepath.Join(bin, program), args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%s: %v\n%s", program, err, out)
	}
}

func awaitReady(b *testing.B, host string) {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		r, err := http.Get("http://" + host + ":15000/healthz/ready")
		if err != nil {
			continue
		}
		r.Body.Close()
		if r.StatusCode == http.StatusOK {
			return
		}
	}
	b.Fatalf("the process with admin address %s does not get ready", host)
}

// serveApp answers each connection by its first byte: u takes bytes until FIN
// and answers one, d sends for ever, e echoes.
func serveApp(b *testing.B, addr string) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var verb [1]byte
				if _, err := io.ReadFull(c, verb[:]); err != nil {
					return
				}
				switch verb[0] {
				case 'u':
					io.Copy(io.Discard, c)
					c.Write(verb[:])
				case 'd':
					for buf := make([]byte, 64<<10); err == nil; {
						_, err = c.Write(buf)
					}
				case 'e':
					io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
				}
			}()
		}
	}()
}

// cpu is the processor time a process has used (fields 14 and 15 of
// /proc/PID/stat, in ticks of 1/100 s).
func cpu(b *testing.B, cmd *exec.Cmd) time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// measure runs f and reports the processor time of each role per unit, units
// being GiB or connections.
func (p *path) measure(b *testing.B, roles []string, unit string, units func() float64, scale time.Duration, f func()) {
	before := map[string]time.Duration{}
	for _, r := range roles {
		before[r] = cpu(b, p.roles[r])
	}
	b.ResetTimer()
	f()
	b.StopTimer()
	total := time.Duration(0)
	for _, r := range roles {
		used := cpu(b, p.roles[r]) - before[r]
		total += used
		b.ReportMetric(float64(used)/float64(scale)/units(), r+"-"+unit)
	}
	b.ReportMetric(float64(total)/float64(scale)/units(), "all-"+unit)
}

func dial(b *testing.B, addr string, verb byte) *net.TCPConn {
	c, err := net.Dial("tcp", addr)
	if err == nil {
		_, err = c.Write([]byte{verb})
	}
	if err != nil {
		b.Error(err)
		return nil
	}
	return c.(*net.TCPConn)
}

// BenchmarkPath measures the binaries as processes. One operation of up and
// down is 1 MiB over all streams; of echo one exchange of 1 KiB; of connect one
// connection with one byte each way.
func BenchmarkPath(b *testing.B) {
	p := startPath(b)
	for _, hop := range []struct {
		name, addr string
		roles      []string
	}{
		{"single", p.single, []string{"client", "near"}},
		{"double", p.double, []string{"client", "gateway", "far"}},
	} {
		for _, streams := range []int{1, 16} {
			for _, way := range []byte("ud") {
				b.Run(fmt.Sprintf("%s/%s%d", hop.name, map[byte]string{'u': "up", 'd': "down"}[way], streams), func(b *testing.B) {
					b.SetBytes(1 << 20)
					gib := func() float64 { return float64(b.N) / 1024 }
					p.measure(b, hop.roles, "cpu-s/GiB", gib, time.Second, func() { bulk(b, hop.addr, way, streams) })
				})
			}
		}
		b.Run(hop.name+"/echo", func(b *testing.B) {
			p.measure(b, hop.roles, "cpu-us/op", func() float64 { return float64(b.N) }, time.Microsecond, func() { echo(b, hop.addr) })
		})
		b.Run(hop.name+"/connect", func(b *testing.B) {
			p.measure(b, hop.roles, "cpu-us/op", func() float64 { return float64(b.N) }, time.Microsecond, func() { connect(b, hop.addr) })
		})
	}
}

// bulk moves b.N MiB, shared among streams.
func bulk(b *testing.B, addr string, way byte, streams int) {
	var wg sync.WaitGroup
	for i := range streams {
		bytes := int64((b.N+i)/streams) << 20
		wg.Go(func() {
			c := dial(b, addr, way)
			if c == nil {
				return
			}
			defer c.Close()
			var err error
			if way == 'd' {
				_, err = io.CopyN(io.Discard, struct{ io.Reader }{c}, bytes)
			} else {
				for buf := make([]byte, 64<<10); bytes > 0 && err == nil; bytes -= int64(len(buf)) {
					_, err = c.Write(buf)
				}
				c.CloseWrite()
				if err == nil {
					_, err = io.ReadFull(c, make([]byte, 1)) // the application has it all
				}
			}
			if err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
}

func echo(b *testing.B, addr string) {
	c := dial(b, addr, 'e')
	if c == nil {
		return
	}
	defer c.Close()
	buf := make([]byte, 1024)
	for range b.N {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}

func connect(b *testing.B, addr string) {
	for range b.N {
		c := dial(b, addr, 'e')
		if c == nil {
			return
		}
		one := []byte{1}
		if _, err := c.Write(one); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, one); err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}
