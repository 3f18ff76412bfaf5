package gateway

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

// notices are what is wrong now and the controller is to say at objects of the cluster.
func (g *Gateway) notices() []healthstream.Notice {
	if g.fed == nil {
		return nil // New has not come that far
	}
	return slices.Concat(g.addressNotices(), g.rightsNotices(), g.keyNotices(), g.doors.notices(g.hears, g.fed.DoorError))
}

// addressNotices are that nobody of another network can dial the gateways.
func (g *Gateway) addressNotices() []healthstream.Notice {
	if g.kube == nil || g.cfg.Address.Service == "" || !g.kube.Status().Synced {
		return nil
	}
	at, problem := g.kube.Front()
	if problem == "" || len(at) > 0 {
		return nil
	}
	return []healthstream.Notice{{Kind: healthstream.NoticeAddress, Subject: g.cfg.Address.Service, Text: "the gateways have no address for other networks: " + problem}}
}

// rightsNotices are what the API server refuses this gateway.
func (g *Gateway) rightsNotices() (out []healthstream.Notice) {
	if g.kube == nil {
		return nil
	}
	add := func(what, why string) {
		why, _, _ = strings.Cut(why, " - error from a previous attempt") // with the port that it came from
		if strings.Contains(why, "forbidden") {
			out = append(out, healthstream.Notice{Kind: healthstream.NoticeRights, Subject: what,
				Text: fmt.Sprintf("the API server refuses the gateways %s, so that what was known stays in force: %s: give their role that right (docs/rights.md; helm upgrade makes the roles anew)", what, why)})
		}
	}
	for _, l := range g.kube.Status().Lists {
		if l.Failing {
			add(l.Kind, l.LastError)
		}
	}
	tokens := g.tokens.Status()
	add("reviews of the tokens of node proxies", tokens.Away)
	add("the keys that verify tokens", tokens.Error)
	return out
}

// keyNotices are who speaks as a network without a key of it.
func (g *Gateway) keyNotices() (out []healthstream.Notice) {
	for _, err := range g.fed.Refused() {
		var x *networkkey.RefusedError
		if !errors.As(err, &x) || x.Reason != networkkey.WrongKey {
			continue
		}
		text := fmt.Sprintf("somebody speaks as network %q with a key that is not known of it, and is not believed: %s; or two clusters have this name: make one of them anew with another one (isthmus init --network) and link it", x.Network, x.Detail)
		if x.Network == g.cfg.Network {
			text = fmt.Sprintf("another cluster calls itself network %q too, with a key that is not this network's, and is not believed: make one of the two anew with another name (isthmus init --network) and link it", x.Network)
		}
		out = append(out, healthstream.Notice{Kind: healthstream.NoticeKey, Subject: x.Network, Text: text})
	}
	return out
}

// notices are the linked networks with whose gateways this one has no connection, with why the last
// attempt failed. What others pass on may be heard of them all the same.
func (d *doors) notices(live func(network string) bool, failed func(network string) error) (out []healthstream.Notice) {
	for _, x := range d.all() {
		err := failed(x.Network)
		if err == nil && live(x.Network) {
			continue
		}
		if len(x.Addresses) == 0 {
			out = append(out, healthstream.Notice{Kind: healthstream.NoticePeer, Subject: x.Network,
				Text: fmt.Sprintf("there is no connection with a gateway of network %q: no address of it is known, and none of them has dialed here: isthmus link again once that cluster has an address for its gateways (isthmus check of its context says what it waits for), or with --address %[1]s=ADDRESS; isthmus unlink ends it here too", x.Network)})
			continue
		}
		out = append(out, healthstream.Notice{Kind: healthstream.NoticePeer, Subject: x.Network,
			Text: fmt.Sprintf("there is no connection with a gateway of network %q (at %s): %s: see whether the address leads there and a firewall lets it by, whether the link was taken back there (isthmus unlink), and whether its trust domain and keys are those that it was linked with: isthmus check --contexts of both names what differs, isthmus link again mends it, isthmus unlink ends it here too",
				x.Network, x.Addresses[0], whyUnheard(err))})
	}
	return out
}

// whyUnheard is err without what differs each time, such as the port that was dialed from.
func whyUnheard(err error) string {
	var op *net.OpError
	switch {
	case err == nil:
		return "none of them has been heard yet"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "it ends each connection before it has said who it is, as gateways do that do not know this network"
	case errors.As(err, &op):
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}
