package healthstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/internal/meshtest/trust"
)

// classifier refuses each token by the class that it names, and says more than that in its error.
type classifier struct{}

func (classifier) Admit(peer spiffeid.ID) error { return reviewer{}.Admit(peer) }

func (classifier) Prove(_ context.Context, _ spiffeid.ID, claim Claim) (Proof, error) {
	return Proof{}, fmt.Errorf("node: %w", &RefusedError{Refusal(claim.Token), errors.New("secret: pod hidden-1 on node-9")})
}

// A node proxy that is refused knows the class of why, with what to do, and nothing more.
func TestARefusedNodeProxyIsToldTheClass(t *testing.T) {
	inBubble(t, func(w *world) {
		w.gateway("gw-1", func(c *ServerConfig) { c.Prover = classifier{} })
		for _, class := range append(Refusals, "a class of tomorrow") {
			n := w.node("node-1", func(c *ClientConfig) {
				c.Self = trust.Workload("nodeproxy")
				c.Token = func(context.Context) ([]byte, error) { return []byte(class), nil }
			})
			time.Sleep(time.Second)
			got := n.Unattached()
			if len(got) != 1 {
				t.Fatalf("%s: unattached are %v", class, got)
			}
			text := got[0].Err.Error()
			want := class.known()
			if !strings.Contains(text, "("+string(want)+")") || strings.Contains(text, "hidden-1") || strings.Contains(text, "node-9") {
				t.Errorf("%s: the node proxy says %q; want the class %q and none of the gateway's words", class, text, want)
			}
			if remedy := remedies[want]; remedy != "" && !strings.Contains(text, remedy) {
				t.Errorf("%s: the node proxy says %q; want what to do", class, text)
			}
			n.cancel()
			<-n.done
		}
	})
}

// What stays on a line of a status has its remedy there.
func TestRefusalsFitALine(t *testing.T) {
	for _, r := range Refusals {
		if text := (&refusedError{why: r}).Error(); len(text) > 200 {
			t.Errorf("%s has %d bytes, want at most 200: %s", r, len(text), text)
		}
	}
}

// A node proxy of an older version, which does not say that it understands it, sees the stream end, as
// it always did; a newer one that meets an older gateway sees the same, and says where to look.
func TestARefusalIsCompatible(t *testing.T) {
	inBubble(t, func(w *world) {
		gw := w.gateway("gw-1", func(c *ServerConfig) { c.Prover = classifier{} })
		attach := func(explain bool) (*pb.StreamMessage, error) {
			c, err := w.raw(gw, trust.Workload("nodeproxy"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			f := &frames{conn: c, dead: time.Second, metrics: gw.metrics.OrDiscard()}
			if err := f.write(&pb.StreamMessage{Message: &pb.StreamMessage_Attach{Attach: &pb.Attach{Node: "node-1", Network: "west", Instance: make([]byte, 16), Token: []byte("expired"), Explain: explain}}}); err != nil {
				t.Fatal(err)
			}
			return f.read()
		}
		if m, err := attach(false); !errors.Is(err, io.EOF) {
			t.Errorf("an older node proxy got %v, %v; want the end of the stream", m, err)
		}
		if m, err := attach(true); err != nil || m.GetRefused().GetReason() != "expired" {
			t.Errorf("got %v, %v; want the class", m, err)
		}
	})
	if text := (&refusedError{err: io.EOF}).Error(); !strings.Contains(text, "its log says why") {
		t.Errorf("of an older gateway it says %q", text)
	}
}

func TestAnotherReasonIsAnotherLine(t *testing.T) {
	var l refusalLine
	for i, x := range []struct {
		err  error
		want bool
	}{{io.EOF, false}, {&refusedError{err: io.EOF}, true}, {&refusedError{err: io.EOF}, false}, {&refusedError{why: RefusedExpired}, true}, {&refusedError{why: RefusedExpired}, false}, {&refusedError{why: RefusedPod}, true}} {
		if got := l.first(x.err); got != x.want {
			t.Errorf("%d: %v: first %v, want %v", i, x.err, got, x.want)
		}
	}
}
