package healthstream

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

// Observers are told what is wrong at each gateway, also those that come later, and when it is not
// any more; node proxies are not.
func TestObserversAreToldWhatIsWrong(t *testing.T) {
	inBubble(t, func(w *world) {
		var mu sync.Mutex
		wrong := map[string][]Notice{}
		set := func(gateway string, list ...Notice) { mu.Lock(); defer mu.Unlock(); wrong[gateway] = list }
		for _, name := range []string{"gw-1", "gw-2"} {
			w.gateway(name, func(c *ServerConfig) {
				c.Observers = Observers{Admit: admitController, Notices: func() []Notice { mu.Lock(); defer mu.Unlock(); return wrong[name] }}
			})
		}
		peer, rights := Notice{NoticePeer, "east", "nobody is heard"}, Notice{NoticeRights, "pods", "may not list"}
		n := w.node("node-1", nil)
		first := w.observer("controller-1", networkkey.Known{})
		n.attached(2)
		first.attached(2)
		set("gw-1", rights, peer, peer)
		set("gw-2", peer)
		time.Sleep(3 * time.Second)
		later := w.observer("controller-2", networkkey.Known{})
		later.attached(2)
		time.Sleep(3 * time.Second)
		for _, o := range []*node{first, later} {
			if got := o.Notices(); !slices.Equal(got, []Notice{peer, rights}) {
				t.Errorf("%s is told %v; want each once", o.name, got)
			}
		}
		if got := n.Notices(); len(got) != 0 {
			t.Errorf("a node proxy is told %v", got)
		}
		set("gw-1")
		time.Sleep(3 * time.Second)
		if got := first.Notices(); !slices.Equal(got, []Notice{peer}) {
			t.Errorf("told %v still; want what gw-2 says", got)
		}
		set("gw-2")
		time.Sleep(3 * time.Second)
		if got := first.Notices(); len(got) != 0 {
			t.Errorf("told %v still", got)
		}
	})
}

func TestNoticesAreBoundedAndPlain(t *testing.T) {
	var list []Notice
	m := &pb.Notices{Notices: []*pb.Notice{{Kind: "a kind of tomorrow", Text: "x"}}}
	for i := range 3 * maxNotices {
		list = append(list, Notice{NoticePeer, fmt.Sprint("n", i), strings.Repeat("ä\x1b\n", maxNoticeText)})
		m.Notices = append(m.Notices, &pb.Notice{Kind: string(NoticePeer), Subject: fmt.Sprint("n", i), Text: "\xff" + strings.Repeat("x", 2*maxNoticeText)})
	}
	for what, got := range map[string][]Notice{"told": bounded(list), "taken": noticesFromWire(m)} {
		if len(got) == 0 || len(got) > maxNotices {
			t.Errorf("%s: %d notices", what, len(got))
		}
		for _, n := range got {
			if len(n.Text) > maxNoticeText || !utf8.ValidString(n.Text) || strings.ContainsAny(n.Text, "\x1b\n") || n.Kind != NoticePeer {
				t.Fatalf("%s: %q", what, n)
			}
		}
	}
}

// However much of one kind is wrong, of each other kind as much is told, and what is left over is filled.
func TestManyNoticesOfOneKindHideNoOther(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var list []Notice
		count := map[NoticeKind]int{}
		for _, k := range NoticeKinds {
			count[k] = r.IntN([]int{1, 4, 40, 200}[r.IntN(4)] + 1)
			for i := range count[k] {
				list = append(list, Notice{k, fmt.Sprint("n", i), "text"})
			}
		}
		total := len(list)
		r.Shuffle(total, func(i, j int) { list[i], list[j] = list[j], list[i] })
		got, told := bounded(list), map[NoticeKind]int{}
		for _, n := range got {
			told[n.Kind]++
		}
		if len(got) != min(total, maxNotices) || !slices.IsSortedFunc(got, compareNotices) {
			t.Fatalf("of %v %d are told, sorted %t", count, len(got), slices.IsSortedFunc(got, compareNotices))
		}
		for k, n := range told {
			for o, had := range count {
				if told[o] < had && told[o]+1 < n {
					t.Fatalf("of %v are told %v: %s has more than %s, of which some are left out", count, told, k, o)
				}
			}
		}
	}
}
