package nodeproxy_test

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// gatewayFile is the variable that names the configuration of a gateway in a process of its own.
const gatewayFile = "ISTHMUS_TEST_GATEWAY"

// TestGatewayProcess is a gateway that a signal can kill or stop.
func TestGatewayProcess(t *testing.T) {
	file := os.Getenv(gatewayFile)
	if file == "" {
		t.Skip("another test starts it")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var c gateway.Config
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(c, zerolog.New(os.Stderr))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// gatewayProcess starts a declared gateway as a process of its own and waits until it is ready.
func (p *pair) gatewayProcess(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	c := p.GatewayConfig("west", name)
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name+".json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(file + ".log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestGatewayProcess$")
	cmd.Env = append(os.Environ(), gatewayFile+"="+file)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		kill(cmd)
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("%s:\n%s", name, text[max(0, len(text)-3000):])
		}
	})
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	meshtest.Eventually(t, name+" ready", func() bool {
		r, err := client.Get("http://" + c.Admin.Address.String() + "/healthz/ready")
		if err == nil {
			r.Body.Close()
		}
		return err == nil && r.StatusCode == http.StatusOK
	})
	return cmd
}

func kill(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
}

// Each of two gateways is killed or stops sending packets, and another process replaces it. A connection
// that began before may fail. No other does, and the other process is used.
func TestGatewayLossByQUIC(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	for name, loss := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "silent": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) { gatewayLoss(t, loss) })
	}
}

func gatewayLoss(t *testing.T, loss syscall.Signal) {
	p := quicPair(t, 2)
	p.Gateway("west", "gw-2")
	nodes := p.EachNode
	p.EachNode = func(c *nodeproxy.Config) {
		nodes(c)
		c.Retry.Early = false // bytes that were sent early cannot be sent again
	}
	p.Write()
	running := map[string]*exec.Cmd{}
	for _, name := range []string{"gw-1", "gw-2"} {
		running[name] = p.gatewayProcess(t, name)
	}
	for network, nodes := range map[string][]string{"east": {"east-1"}, "west": {"west-1", "west-2"}} {
		for _, node := range nodes {
			p.StartNode(network, node).AwaitReady(t)
		}
	}
	via := func(name string, since time.Time) (n int) {
		for _, l := range p.client().Log.Find("connection", "direction", "outbound", "gateway", name, "result", "ok") {
			if l.Time().After(since) {
				n++
			}
		}
		return n
	}
	flow := meshtest.Flow(t, p.listen.hello, 6)
	var lost []time.Time
	for _, name := range []string{"gw-1", "gw-2"} {
		began := time.Now()
		meshtest.Eventually(t, "connections through "+name, func() bool { return via(name, began) > 20 })
		lost = append(lost, time.Now())
		running[name].Process.Signal(loss)
		flow.AwaitMore(t, 300)
		t.Logf("%s lost: 300 connections after %v", name, time.Since(lost[len(lost)-1]).Round(time.Millisecond))
		kill(running[name])
		flow.AwaitMore(t, 60)
		running[name] = p.gatewayProcess(t, name)
		began = time.Now()
		meshtest.Eventually(t, "connections through the next "+name, func() bool { return via(name, began) > 20 })
		t.Logf("%s used again after %v", name, time.Since(began).Round(time.Millisecond))
	}
	answered, failed := flow.Stop()
	open := 0
	for _, f := range failed {
		under := false
		for _, at := range lost {
			under = under || f.Begun.Before(at) && f.Begun.After(at.Add(-time.Second))
		}
		if under {
			open++
		} else {
			t.Errorf("a connection failed that was not open at the loss: %v", f)
		}
	}
	if loss == syscall.SIGKILL && flow.Slowest() > 4*time.Second {
		t.Errorf("the slowest connection took %v, though ICMP reports that the port is closed", flow.Slowest())
	}
	t.Logf("answered %v, %d open ones failed, slowest %v", answered, open, flow.Slowest().Round(time.Millisecond))
}

// The certificates of all processes are renewed under a flow over QUIC, and a connection stays open.
func TestCertificatesAreRenewedByQUIC(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 13 s")
	}
	p := quicPair(t, 1)
	p.Gateway("west", "gw-2")
	gateways, nodes := p.EachGateway, p.EachNode
	p.EachGateway = func(c *gateway.Config) { gateways(c); c.Identity.TTL = 8 * time.Second }
	p.EachNode = func(c *nodeproxy.Config) { nodes(c); c.Identity.TTL = 8 * time.Second }
	p.Start()
	open, err := meshtest.Dial(p.listen.hello)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := meshtest.Ask(open, "1"); err != nil {
		t.Fatal(err)
	}
	flow := meshtest.Flow(t, p.listen.hello, 4)
	for _, who := range []struct {
		proc *meshtest.Process
		id   any
	}{{p.client(), p.shop.Identity()}, {p.Process("gateway west/gw-1"), p.ID("isthmus-system/gateway-west")}, {p.Process("gateway west/gw-2"), p.ID("isthmus-system/gateway-west")}} {
		meshtest.Eventually(t, "three generations of certificates", func() bool {
			return len(who.proc.Log.Find("svid renewed", "id", who.id)) >= 3
		})
	}
	flow.AwaitMore(t, 20)
	if _, err := meshtest.Ask(open, "2"); err != nil {
		t.Errorf("the connection that stayed open: %v", err)
	}
	answered, failed := flow.Stop()
	if len(failed) > 0 {
		t.Errorf("%d connections failed, the first: %v", len(failed), failed[0])
	}
	t.Logf("answered %v", answered)
}
