package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/drill/demoapp"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// The test binary plays all three programs, by the name it is called under:
// the node proxy dials pods directly and tries the next when one refuses.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "isthmus":
		os.Exit(fakeIsthmus(os.Args[1:]))
	case "gateway", "nodeproxy":
		os.Exit(fakeProxy(os.Args[2]))
	case "runner": // a drill in a process of its own, to be killed
		s, err := scenario.Load(os.Args[2])
		if err == nil {
			_, err = Run(context.Background(), s, Options{Out: os.Args[3], Bin: os.Args[1]})
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// fakes returns a folder with the three programs and a runner.
func fakes(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"isthmus", "gateway", "nodeproxy", "runner"} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func fakeIsthmus(args []string) int {
	if args[0] == "ca" {
		return 0
	}
	c := demoapp.Config{}
	for i := 1; i < len(args); i++ {
		switch args[i] {
		case "--name":
			c.Name = args[i+1]
		case "--listen":
			c.Listen = append(c.Listen, netip.MustParseAddrPort(args[i+1]))
		case "--exchange":
			c.Exchange = demoapp.Exchange(args[i+1])
		}
	}
	a, err := demoapp.Start(context.Background(), c)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	defer a.Close()
	a.Control(context.Background(), os.Stdin, os.Stdout)
	return 0
}

type fakeConfig struct {
	Node      string
	Name      string
	Discovery struct{ File string }
	Admin     struct{ Address string }
	Listen    string
	Outbound  []struct{ Workload, Listen, To string }
	Retry     struct{ Attempts int }
}

func fakeProxy(path string) int {
	data, err := os.ReadFile(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	var c fakeConfig
	if err := yaml.Unmarshal(data, &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if c.Retry.Attempts == 13 { // a test wants a process that does not start
		logLine(map[string]any{"message": "cannot start", "error": "thirteen"})
		return 3
	}
	var mesh discovery.Config
	data, _ = os.ReadFile(c.Discovery.File)
	if err := yaml.Unmarshal(data, &mesh); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if c.Listen != "" {
		l, err := net.Listen("tcp4", c.Listen)
		if err != nil {
			return 3
		}
		go refuseHello(l)
	}
	for _, o := range c.Outbound {
		l, err := net.Listen("tcp4", o.Listen)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 3
		}
		_, port, _ := net.SplitHostPort(o.To)
		go fakeOutbound(l, mesh, port)
	}
	l, err := net.Listen("tcp4", c.Admin.Address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if pod := q.FormValue("inbound"); pod != "" {
			logLine(map[string]any{"message": "connection", "direction": "inbound", "workload": pod, "port": json.Number(q.FormValue("port")), "result": "ok", "started": q.FormValue("started")})
		}
	}))
	return 0
}

// refuseHello does what a TLS server does with words that are no hello.
func refuseHello(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			c.Read(make([]byte, 64))
			c.Close()
		}()
	}
}

func fakeOutbound(l net.Listener, mesh discovery.Config, port string) {
	var pods []discovery.Workload
	for _, w := range mesh.Workloads {
		if len(w.Services) > 0 {
			pods = append(pods, w)
		}
	}
	var turn atomic.Int64
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			began := time.Now().Format(time.RFC3339Nano)
			for range pods {
				p := pods[turn.Add(1)%int64(len(pods))]
				b, err := net.DialTimeout("tcp4", p.Addresses[0].String()+":"+port, time.Second)
				if err != nil {
					number := json.Number(port)
					// The real ones say this on the pod's node: one log or another, the drill reads all.
					logLine(map[string]any{"message": "connection", "direction": "inbound", "workload": p.UID, "port": number, "target": number, "result": "refused", "started": began})
					continue
				}
				defer b.Close()
				go func() { io.Copy(b, c); b.(*net.TCPConn).CloseWrite() }()
				io.Copy(c, b)
				fakeInbound(p, port, began)
				logLine(map[string]any{"message": "connection", "direction": "outbound", "workload": p.UID, "port": json.Number(port), "result": "ok", "started": began})
				return
			}
		}()
	}
}

// fakeInbound lets the node proxy of p's node, whose admin address follows from
// the layout, write its line too.
func fakeInbound(p discovery.Workload, port, began string) {
	a := p.Addresses[0].As4()
	number, _ := strconv.Atoi(p.Node[strings.LastIndex(p.Node, "-")+1:])
	a[2], a[3] = a[2]+2, byte(number)
	q := url.Values{"inbound": {p.UID}, "port": {port}, "started": {began}}
	if r, err := http.Get("http://" + netip.AddrPortFrom(netip.AddrFrom4(a), 15000).String() + "/?" + q.Encode()); err == nil {
		r.Body.Close()
	}
}

func logLine(fields map[string]any) {
	fields["level"], fields["time"] = "info", time.Now().Format(time.RFC3339Nano)
	b, _ := json.Marshal(fields)
	os.Stderr.WriteString(strings.TrimSpace(string(b)) + "\n")
}
