package gateway_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

func TestHeldDiscoveryShowsOnTheAdminPortAndIsConfirmedThere(t *testing.T) {
	s := newSite(t, 0)
	for i := range 5 {
		s.pods = append(s.pods, s.Pod("west", "", fmt.Sprintf("hello-%d", i+1), "hello"))
	}
	s.Start()
	gw := s.gateway()
	for _, p := range s.pods[:3] {
		p.Remove()
	}
	s.Write()
	held := func() meshtest.Line {
		d, _ := gw.State(t)["discovery"].(map[string]any)
		return meshtest.Line(d)
	}
	meshtest.Eventually(t, "the change is held", func() bool { return held().Has("failing", true, "revision", 1) })
	if n := len(gw.Rows(t, "pods")); n != 5 {
		t.Errorf("%d pods in force; want all 5", n)
	}
	if v := gw.Metric(t, "isthmus_discovery_held"); v != 1 {
		t.Errorf("isthmus_discovery_held is %v; want 1", v)
	}
	if status, body := gw.Get(t, "/healthz/ready"); status != http.StatusOK || !strings.Contains(body, "3 of 6 workloads") || !strings.Contains(body, `"lastSuccess"`) {
		t.Errorf("/healthz/ready = %d %s; want it ready, and what is wrong with the file", status, body)
	}
	confirm := func(id string) int {
		r, err := http.Post("http://"+gw.Admin.String()+"/discovery/confirm?id="+id, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		return r.StatusCode
	}
	if status := confirm("nonsense"); status != http.StatusConflict {
		t.Errorf("a wrong name is answered %d; want 409", status)
	}
	if status := confirm(""); status != http.StatusBadRequest {
		t.Errorf("no name is answered %d; want 400", status)
	}
	id, _ := held()["held"].(string)
	if status := confirm(id); status != http.StatusOK {
		t.Errorf("its name is answered %d; want 200", status)
	}
	if !held().Has("failing", false, "revision", 2) || len(gw.Rows(t, "pods")) != 2 {
		t.Errorf("/state says %v and %d pods; want revision 2 with 2", held(), len(gw.Rows(t, "pods")))
	}
}

func TestWordsThatDiscoveryDoesNotKnowAreRefusedAtStart(t *testing.T) {
	s := newSite(t, 1)
	s.Write()
	for _, c := range []struct {
		name string
		edit func(*gateway.Config)
		want []string
	}{
		{"network", func(c *gateway.Config) { c.Network = "wets" }, []string{"network: ", `"wets"`, `did you mean "west"?`}},
		{"name", func(c *gateway.Config) { c.Name = "gw-l" }, []string{"name: ", `"gw-l"`, `did you mean "gw-1"?`}},
		{"trust domain", func(c *gateway.Config) { c.TrustDomain = "cluster.locl" }, []string{"trustDomain: ", `"cluster.locl"`, `"cluster.local"`}},
		{"two at once", func(c *gateway.Config) { c.TrustDomain, c.Name = "cluster.locl", "other" }, []string{"trustDomain: ", "name: "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := s.GatewayConfig("west", "gw-1")
			c.edit(&cfg)
			_, err := gateway.New(cfg, zerolog.Nop())
			if err == nil {
				t.Fatal("it starts")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not name %q", err, want)
				}
			}
		})
	}
}

func TestGatewayWithoutItsCertificateIsNotReadyAndSaysWhich(t *testing.T) {
	s := newSite(t, 1)
	s.Write()
	dir := t.TempDir()
	gw := s.StartGateway("west", "gw-1", func(c *gateway.Config) {
		c.Identity = identity.Config{Source: "files", Dir: dir}
		c.Federation.Health = false
	})
	id := s.ID("isthmus-system/gateway-west")
	meshtest.Eventually(t, "only the certificate is pending", func() bool {
		status, body := gw.Get(t, "/healthz/ready")
		return status == http.StatusServiceUnavailable && strings.Contains(body, id.String()) && strings.Contains(body, "bundle.pem") && !strings.Contains(body, "federation")
	})
	if v := gw.Metric(t, "isthmus_identity_missing"); v != 1 {
		t.Errorf("isthmus_identity_missing is %v; want 1", v)
	}
	svid, err := s.CA.Issue(id, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := identity.WriteSVID(dir, svid); err != nil {
		t.Fatal(err)
	}
	gw.AwaitReady(t)
	if err := os.Remove(filepath.Join(dir, "bundle.pem")); err != nil {
		t.Fatal(err)
	}
	if status, body := gw.Get(t, "/healthz/ready"); status != http.StatusOK {
		t.Errorf("/healthz/ready = %d %s while the certificate is valid; want 200", status, body)
	}
}
