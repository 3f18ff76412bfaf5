package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/mesh"
)

func goAway(code http2.ErrCode) error { return &hbone.GoAwayError{Code: code} }
func rst(code http2.ErrCode) error    { return &hbone.ResetError{Code: code, Remote: true} }

// status is a response; its endpoint is the pod 7 if it names one.
func status(code int, reason header.Reason, names bool) error {
	h := hbone.Header{}
	if reason != "" {
		h[header.NameReason] = string(reason)
	}
	if names {
		h[header.NameEndpoint] = mesh.EndpointID(7).String()
	}
	return &hbone.StatusError{Status: code, Header: h}
}

// refusals are the ways in which a peer refuses, or a hop fails, as a connection
// that goes to a gateway, and one that goes to a pod, takes them: whose health moves,
// and where it is repeated. It is the table of docs/architecture.md.
var refusals = []struct {
	what         string
	err          error
	outer, inner string
}{
	{"no answer: TCP, TLS or a time limit", syscall.ECONNREFUSED, "`connect`: its own; another gateway", "`connect`: its own; another pod"},
	{"the response takes too long", hbone.ErrConnectTimeout, "`connect`: its own; another gateway", "`connect`: its own; another pod"},
	{"a PING is not answered", hbone.ErrPingTimeout, "`connect`: its own; another gateway", "`connect`: its own; another pod"},
	{"the session breaks", os.ErrDeadlineExceeded, "`connect`: its own; another gateway", "`connect`: its own; another pod"},
	{"RST_STREAM REFUSED_STREAM", rst(http2.ErrCodeRefusedStream), "`overload`: nobody's; once, another gateway", "`overload`: nobody's; once, another pod"},
	{"RST_STREAM ENHANCE_YOUR_CALM", rst(http2.ErrCodeEnhanceYourCalm), "`overload`: nobody's; once, another gateway", "`overload`: nobody's; once, another pod"},
	{"RST_STREAM with any other code", rst(http2.ErrCodeInternal), "`connect`: its own; another gateway", "`connect`: its own; another pod"},
	{"GOAWAY NO_ERROR", goAway(http2.ErrCodeNo), "`connect`: nobody's; another gateway", "`connect`: nobody's; another pod"},
	{"GOAWAY ENHANCE_YOUR_CALM", goAway(http2.ErrCodeEnhanceYourCalm), "`overload`: nobody's; once, another gateway", "`overload`: nobody's; once, another pod"},
	{"GOAWAY with any other code", goAway(http2.ErrCodeInternal), "`connect`: its own; another gateway", "`connect`: its own; another pod"},
	{"it breaks a rule of HTTP/2", &hbone.ProtocolError{Code: http2.ErrCodeFlowControl}, "`connect`: its own; another gateway", "`connect`: its own; another pod"},
	{"its certificate, or ours, is not believed", identityError(), "`identity`: nobody's; another gateway", "`identity`: nobody's; another pod"},
	{"we have no certificate", &identity.OwnError{Err: errors.New("no CA")}, "`own_identity`: nobody's; not repeated", "`own_identity`: nobody's; not repeated"},
	{"we cannot dial", failsLocally(syscall.EMFILE), "`local`: nobody's; another gateway", "`local`: nobody's; another pod"},
	{"we have reset the session for its memory", hbone.ErrMemory, "`local`: nobody's; another gateway", "`local`: nobody's; another pod"},
	{"all our sessions there are full", errors.Join(pool.ErrExhausted, context.DeadlineExceeded), "`overload`: nobody's; another gateway", "`overload`: nobody's; another pod"},
	{"all our sessions there are halted", pool.ErrHalted, "`overload`: nobody's; another gateway", "`overload`: nobody's; another pod"},
	{"we have closed the session", hbone.ErrSessionClosed, "`connect`: nobody's; another gateway", "`connect`: nobody's; another pod"},
	{"a certificate that the session rests on has expired", hbone.ErrCertificateExpired, "`connect`: nobody's; another gateway", "`connect`: nobody's; another pod"},
	{"another replica at that address answers", &elsewhereError{want: "west/gw-1", got: "west/gw-2"}, "`elsewhere`: nobody's; another gateway", "`elsewhere`: nobody's; another pod"},
	{"401", status(401, "", false), "`status`: nobody's; not repeated", "`status`: nobody's; not repeated"},
	{"429", status(429, "", false), "`overload`: nobody's; once, another gateway", "`overload`: nobody's; once, another pod"},
	{"any other 4xx", status(403, "", false), "`status`: nobody's; another network", "`status`: nobody's; another pod"},
	{"5xx, 3xx", status(503, "", false), "`status`: of the service on its network; another network", "`status`: its own; another pod"},
	{"any status, overload", status(503, header.ReasonOverload, false), "`overload`: nobody's; once, another gateway", "`overload`: nobody's; once, another pod"},
	{"draining", status(503, header.ReasonDraining, false), "`draining`: its own; another gateway", "`draining`: nobody's; another pod"},
	{"denied", status(503, header.ReasonDenied, false), "`denied`: nobody's; not repeated", "`denied`: nobody's; not repeated"},
	{"not_exported", status(503, header.ReasonNotExported, false), "`not_exported`: nobody's; another network", "`not_exported`: nobody's; another pod"},
	{"unknown_service", status(503, header.ReasonUnknownService, false), "`unknown_service`: nobody's; another network", "`unknown_service`: nobody's; another pod"},
	{"not_local", status(503, header.ReasonNotLocal, false), "`not_local`: nobody's; another network", "`not_local`: nobody's; another pod"},
	{"bad_authority", status(503, header.ReasonBadAuthority, false), "`bad_authority`: nobody's; another network", "`bad_authority`: nobody's; another pod"},
	{"bad_request", status(503, header.ReasonBadRequest, false), "`bad_request`: nobody's; another network", "`bad_request`: nobody's; another pod"},
	{"withdrawn", status(503, header.ReasonWithdrawn, false), "`withdrawn`: nobody's; another network", "`withdrawn`: nobody's; another pod"},
	{"pinned_gone", status(503, header.ReasonPinnedGone, false), "`pinned_gone`: nobody's; another network", "`pinned_gone`: nobody's; another pod"},
	{"no_endpoint", status(503, header.ReasonNoEndpoint, false), "`no_endpoint`: of the service on its network; another network", "`no_endpoint`: its own; another pod"},
	{"unreachable", status(503, header.ReasonUnreachable, true), "`unreachable`: of the service on its network; another pod", "`unreachable`: its own; another pod"},
	{"refused, by the application", status(503, header.ReasonRefused, true), "`refused`: of the service on its network; another pod", "`refused`: its own; another pod"},
	{"timeout, by the application", status(504, header.ReasonTimeout, true), "`timeout`: of the service on its network; another pod", "`timeout`: its own; another pod"},
	{"reset, by the application", status(503, header.ReasonReset, true), "`reset`: of the service on its network; another pod", "`reset`: its own; another pod"},
}

// What a question of our own finds too, and what it does not: see picker.Outcome.
func TestWhatHasNotReachedAGateway(t *testing.T) {
	for _, c := range []struct {
		err       error
		unreached bool
	}{
		{&dialError{syscall.ECONNREFUSED}, true},
		{&dialError{os.ErrDeadlineExceeded}, true},
		{inHandshake(hopOuter, os.ErrDeadlineExceeded), true},
		{context.DeadlineExceeded, true}, // behind others that dial
		{hbone.ErrConnectTimeout, false},
		{hbone.ErrPingTimeout, false},
		{hbone.ErrSettingsTimeout, false},
		{rst(http2.ErrCodeInternal), false},
		{goAway(http2.ErrCodeInternal), false},
		{status(503, header.ReasonDraining, false), false},
		{&lostCarrierError{inHandshake(hopInner, syscall.ECONNRESET)}, false},
	} {
		f := outerResponse(fmt.Errorf("through gateway west/gw-1 at 10.0.0.1:15008: %w", c.err))
		if got := f.unreached(); got != c.unreached {
			t.Errorf("%v: unreached %v, want %v", c.err, got, c.unreached)
		}
	}
}

func identityError() error { return &identity.ChainError{Err: errors.New("unknown authority")} }

// taken says what becomes of f, which is of a hop to a gateway or to a pod.
func taken(f *failure, outer bool) string {
	var said strings.Builder
	fmt.Fprintf(&said, "`%s`: ", f.reason)
	switch {
	case !f.fault:
		said.WriteString("nobody's; ")
	case f.at == atNetwork:
		said.WriteString("of the service on its network; ")
	case f.at == atGateway && outer, f.at == atEndpoint && !outer:
		said.WriteString("its own; ")
	default:
		fmt.Fprintf(&said, "of layer %d?; ", f.at)
	}
	if f.final {
		return said.String() + "not repeated"
	}
	if f.overload() {
		said.WriteString("once, ")
	}
	switch {
	case f.at == atGateway:
		said.WriteString("another gateway")
	case f.at == atEndpoint || f.endpoint != 0:
		said.WriteString("another pod")
	default:
		said.WriteString("another network")
	}
	return said.String()
}

// Each way to refuse is taken as the table says, also where it is wrapped as on the way
// up, and the table is that of the docs.
func TestWhoseFaultARefusalIs(t *testing.T) {
	var table strings.Builder
	table.WriteString("| what comes | from a gateway | from a pod's node proxy |\n|---|---|---|\n")
	for _, c := range refusals {
		err := fmt.Errorf("through gateway west/gw-1 at 10.0.0.1:15008: hbone: CONNECT hello:80: %w", c.err)
		if got := taken(outerResponse(err), true); got != c.outer {
			t.Errorf("%s from a gateway: %s; want %s", c.what, got, c.outer)
		}
		for _, hop := range []string{hopSingle, hopInner} {
			if got := taken(innerResponse(7, hop, err), false); got != c.inner {
				t.Errorf("%s from a pod (%s): %s; want %s", c.what, hop, got, c.inner)
			}
		}
		fmt.Fprintf(&table, "| %s | %s | %s |\n", c.what, c.outer, c.inner)
	}
	page, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), table.String()) {
		t.Errorf("docs/architecture.md does not have this table:\n%s", table.String())
	}
}

// Whatever reason or code is added, it is in the table.
func TestEachReasonAndCodeHasAFault(t *testing.T) {
	for _, r := range header.Reasons {
		found := false
		for _, c := range refusals {
			var s *hbone.StatusError
			found = found || errors.As(c.err, &s) && s.Reason() == r
		}
		if !found {
			t.Errorf("reason %s is not in the table", r)
		}
	}
	limits := map[http2.ErrCode]bool{http2.ErrCodeRefusedStream: true, http2.ErrCodeEnhanceYourCalm: true}
	for code := http2.ErrCodeNo; code <= http2.ErrCodeHTTP11Required; code++ {
		if got, want := blameOf(rst(code)) == blameLimit, limits[code]; got != want {
			t.Errorf("RST_STREAM %v counts as a limit of ours: %v, want %v", code, got, want)
		}
		if got, want := blameOf(goAway(code)) == blameHop, code != http2.ErrCodeNo && code != http2.ErrCodeEnhanceYourCalm; got != want {
			t.Errorf("GOAWAY %v is held against the hop: %v, want %v", code, got, want)
		}
	}
	for code := 100; code < 600; code++ {
		if f := innerResponse(7, hopSingle, status(code, "", false)); f.fault != (code < 400 || code >= 500) {
			t.Errorf("status %s is held against the pod: %v", strconv.Itoa(code), f.fault)
		}
	}
}
