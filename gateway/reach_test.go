package gateway_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// reach asks a gateway of east to dial others.
func (s *site) reach(t *testing.T) (r answer.Reach) {
	t.Helper()
	status, body := s.Process("gateway east/gw-e").Get(t, "/reach")
	if err := json.Unmarshal([]byte(body), &r); status != http.StatusOK || err != nil {
		t.Fatalf("/reach: %d, %v\n%s", status, err, body)
	}
	return r
}

// Whether others can be reached is found out anew each time, by a tunnel of its own: what is
// open already, and what was found before, say nothing.
func TestAGatewayDialsOthersWhenItIsAsked(t *testing.T) {
	s := newSite(t, 1)
	s.Gateway("east", "gw-e")
	s.Start()
	meshtest.Eventually(t, "gw-1 is heard", func() bool {
		for _, i := range s.Process("gateway east/gw-e").Rows(t, "instances") {
			if i.Has("gateway", "gw-1", "phase", "live") {
				return true
			}
		}
		return false
	})
	r := s.reach(t)
	if len(r.Tried) != 1 || r.Network != "east" || r.Process != "gateway gw-e" {
		t.Fatalf("%+v; want one address of west", r)
	}
	at := s.GatewayAt("west", "gw-1").String()
	x := r.Tried[0]
	if x.Error != "" || x.Network != "west" || x.Address != at || x.Gateway != "west/gw-1" || !strings.HasSuffix(x.Identity, "/sa/gateway-west") || x.RTTMS <= 0 || !x.Expires.After(time.Now()) {
		t.Errorf("%+v; want gw-1 of west at %s, by its certificate", x, at)
	}

	for i := range s.Config.Gateways { // discovery here expects somebody else there
		if s.Config.Gateways[i].Network == "west" {
			s.Config.Gateways[i].ServiceAccount = "isthmus-system/other"
		}
	}
	s.Write()
	meshtest.Eventually(t, "who answers is named", func() bool {
		x := s.reach(t).Tried[0]
		return x.RTTMS == 0 && strings.Contains(x.Error, "/sa/gateway-west") && strings.Contains(x.Error, "/sa/other")
	})
	s.gateway().Stop(t)
	meshtest.Eventually(t, "nobody answers", func() bool {
		x := s.reach(t).Tried[0]
		return strings.Contains(x.Error, "refused")
	})
}
