package healthstream

import (
	"cmp"
	"slices"
	"strings"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
)

// Notice is one thing that is wrong at a gateway and that is said where operators look for
// it, such as in an Event at an object of its cluster: by the controller, which alone
// may write those.
type Notice struct {
	Kind NoticeKind
	// Subject is what it is about, by its kind: a network, or namespace/name of an object.
	Subject string
	// Text is what is wrong, with the remedy. It holds nothing that changes by itself, such
	// as an age: another text is another notice.
	Text string
}

// NoticeKind is what a notice is about.
type NoticeKind string

// The kinds. A reader passes over those that it does not know.
const (
	NoticeAddress NoticeKind = "address" // no other network can dial the gateways; the Subject is their Service
	NoticePeer    NoticeKind = "peer"    // there is no connection with a gateway of the network Subject
	NoticeKey     NoticeKind = "key"     // somebody speaks as the network Subject without a key of it
	NoticeRights  NoticeKind = "rights"  // the API server refuses the gateway what it needs; the Subject is empty
)

// NoticeKinds are all of them.
var NoticeKinds = []NoticeKind{NoticeAddress, NoticePeer, NoticeKey, NoticeRights}

const (
	// maxNotices is how many a gateway tells, and how many are taken of one.
	maxNotices = 64
	// maxNoticeText bounds a text in bytes, and a subject: an Event takes 1024.
	maxNoticeText = 900
)

func compareNotices(a, b Notice) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), strings.Compare(a.Subject, b.Subject), strings.Compare(a.Text, b.Text))
}

// noticesToWire makes the message that replaces all notices of a gateway.
func noticesToWire(list []Notice) *pb.StreamMessage {
	out := &pb.Notices{}
	for _, n := range list {
		out.Notices = append(out.Notices, &pb.Notice{Kind: string(n.Kind), Subject: n.Subject, Text: n.Text})
	}
	return &pb.StreamMessage{Message: &pb.StreamMessage_Notices{Notices: out}}
}

// bounded is list, sorted, each once, with texts that are valid and short. Of too many the first of
// each kind stay, as many of one as of another: networks that are not reached hide no missing right.
func bounded(list []Notice) []Notice {
	out := make([]Notice, 0, len(list))
	for _, n := range list {
		n.Subject, n.Text = printable(n.Subject), printable(n.Text)
		out = append(out, n)
	}
	slices.SortFunc(out, compareNotices)
	if out = slices.Compact(out); len(out) <= maxNotices {
		return out
	}
	turn := make(map[Notice]int, len(out)) // how many of its kind come before it
	for i := 1; i < len(out); i++ {
		if out[i].Kind == out[i-1].Kind {
			turn[out[i]] = turn[out[i-1]] + 1
		}
	}
	slices.SortStableFunc(out, func(a, b Notice) int { return turn[a] - turn[b] })
	out = out[:maxNotices]
	slices.SortFunc(out, compareNotices)
	return out
}

// printable is s without control characters, and at most maxNoticeText bytes of it.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > maxNoticeText {
		s = strings.ToValidUTF8(s[:maxNoticeText], "")
	}
	return s
}

// noticesFromWire reads what a gateway tells; what is of a kind that is not known is left
// out.
func noticesFromWire(m *pb.Notices) []Notice {
	var out []Notice
	for _, n := range m.GetNotices()[:min(len(m.GetNotices()), maxNotices)] {
		if k := NoticeKind(n.GetKind()); slices.Contains(NoticeKinds, k) {
			out = append(out, Notice{k, n.GetSubject(), n.GetText()})
		}
	}
	return bounded(out)
}

// wrong is what observers are to be told, if there are any.
func (s *Server) wrong() []Notice {
	if len(s.observers.all()) == 0 {
		return nil
	}
	return bounded(s.cfg.Observers.Notices())
}

// notify tells whoever observes what is wrong here, if that is not what they were told.
func (x *observers) notify(list []Notice) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if slices.Equal(list, x.notices) {
		return
	}
	x.notices = list
	for o := range x.streams {
		o.down.notify(list)
	}
}

// notify owes list.
func (d *downlink) notify(list []Notice) {
	d.mu.Lock()
	d.notices = &list
	d.mu.Unlock()
	d.nudge()
}

// unsaid takes the notices that are owed; nil: none.
func (d *downlink) unsaid() *[]Notice {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.notices
	d.notices = nil
	return out
}

// noticed takes what a gateway tells of itself.
func (c *Client) noticed(up *uplink, list []Notice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	up.notices = list
}

// Notices are what the gateways that are attached to say is wrong there, sorted, each once
// however many say it.
func (c *Client) Notices() (out []Notice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.links {
		out = append(out, l.notices...)
	}
	slices.SortFunc(out, compareNotices)
	return slices.Compact(out)
}
