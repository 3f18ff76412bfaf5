package gateway_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// reach asks a gateway of east to dial others.
func (s *site) reach(t *testing.T, query ...string) (r answer.Reach) {
	t.Helper()
	status, body := s.Process("gateway east/gw-e").Get(t, "/reach"+strings.Join(query, ""))
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

	path := x.Path // a busy machine sends several exchanges in one segment
	if path == nil || path.Exchanges != 300 || path.RTTMS <= 0 || path.There.Segments < 100 || path.Back.Segments < 100 || path.There.PacketBytes < 1500 || path.Back.PacketBytes < 1500 || len(path.Faults()) > 0 || path.BitsPerSecond != 0 {
		t.Errorf("%+v; want 300 exchanges, both directions, and no fault", path)
	}
	if path := s.reach(t, "?path=west").Tried[0].Path; path == nil || path.BitsPerSecond < 1e6 {
		t.Errorf("%+v; want a throughput", path)
	}
	if status, body := s.Process("gateway east/gw-e").Get(t, "/reach?path=wst"); status != http.StatusBadRequest || !strings.Contains(body, `did you mean \"west\"?`) && !strings.Contains(body, `did you mean "west"?`) {
		t.Errorf("an unknown network: %d, %s", status, body)
	}
	for _, name := range []string{"tunnel", "tunnel_failed"} {
		if l := s.gateway().Log.Find(name, "service", "check.isthmus.invalid"); len(l) > 0 {
			t.Errorf("a check is logged %d times as %s", len(l), name)
		}
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

func TestOnlyGatewaysMeasureThroughput(t *testing.T) {
	s := newSite(t, 1)
	s.Start()
	_, _, err := s.dial(t).Open(t.Context(), &hbone.Request{Authority: header.SinkAuthority})
	var status *hbone.StatusError
	if !errors.As(err, &status) || status.Status != http.StatusForbidden || status.Reason() != header.ReasonNotExported {
		t.Errorf("%v; want 403 for the identity of a workload", err)
	}
}

func TestCheckResponseIsNoLargerThanItsRequest(t *testing.T) {
	s := newSite(t, 1)
	s.Start()
	session := s.dial(t)
	for _, size := range []int{0, 1, 3000, 15 << 10} { // this client accepts header lists of 16 KiB
		_, _, err := session.Open(t.Context(), &hbone.Request{Authority: header.CheckAuthority, Header: hbone.Header{header.NameEcho: strings.Repeat("~", size)}})
		var status *hbone.StatusError
		if !errors.As(err, &status) || status.Status != http.StatusNotFound || len(status.Header.Get(header.NameEcho)) != size {
			t.Errorf("%d bytes: %v; want 404 with as many", size, err)
			continue
		}
		if sent, ok := header.ParseSent(status.Header.Get(header.NameSent)); !ok || sent.Segments == 0 || sent.MaxSegment < 1000 {
			t.Errorf("%d bytes: %+v; want what the gateway sent", size, status.Header)
		}
	}
	_, _, err := session.Open(t.Context(), &hbone.Request{Authority: header.CheckAuthority, Header: hbone.Header{header.NameEcho: strings.Repeat("~", header.MaxEcho+1)}})
	var status *hbone.StatusError
	if !errors.As(err, &status) || status.Header.Get(header.NameEcho) != "" {
		t.Errorf("%v; want 404 without what is too long", err)
	}
}
