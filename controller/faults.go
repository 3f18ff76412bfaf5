package controller

import (
	"fmt"
	"strings"

	"github.com/isthmus-mesh/isthmus/controller/notices"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
)

// The Deployments of the chart.
const (
	gatewayDeployment    = "isthmus-gateway"
	controllerDeployment = "isthmus-controller"
)

// faults are what is wrong with the processes of this cluster and their links now: by what
// its gateways tell, and by what this process sees itself.
func (c *Controller) faults() (out []fault) {
	object := func(kind notices.Kind, name string) notices.Object {
		return notices.Object{Kind: kind, Namespace: c.cfg.Namespace, Name: name}
	}
	add := func(at notices.Object, reason, subject, text string) {
		out = append(out, fault{matter{at, reason, subject}, text})
	}
	links := object(notices.ConfigMap, c.cfg.Federation.ConfigMap)
	gateways, self := object(notices.Deployment, gatewayDeployment), object(notices.Deployment, controllerDeployment)
	for _, n := range c.stream.Notices() {
		_, linked := c.links.Get(n.Subject)
		switch {
		case n.Kind == healthstream.NoticeAddress:
			at := gateways
			if name, own := strings.CutPrefix(n.Subject, c.cfg.Namespace+"/"); own {
				at = object(notices.Service, name)
			}
			add(at, "NoAddress", "", n.Text)
		case n.Kind == healthstream.NoticePeer && linked:
			add(links, "NotConnected", n.Subject, n.Text)
		case n.Kind == healthstream.NoticeKey && (linked || n.Subject == c.cfg.Network):
			add(links, "NameTaken", n.Subject, n.Text)
		case n.Kind == healthstream.NoticeRights:
			add(gateways, "MissingRight", n.Subject, n.Text)
		}
	}
	if err := c.links.Failure(); err != nil {
		add(links, "Unreadable", "", fmt.Sprintf("networks.yaml is not read, %s: %v", c.withoutLinks(), err))
	}
	for what, why := range c.refusedHere() {
		add(self, "MissingRight", what, fmt.Sprintf("the API server refuses isthmus-controller to %s: %s: what is there stays as it is; give its role that right (docs/rights.md; helm upgrade makes the roles anew)", what, why))
	}
	return out
}

// refusedHere are the rights that this process lacks, by what it needs them for.
func (c *Controller) refusedHere() map[string]string {
	out := map[string]string{}
	add := func(what, why string) {
		if right := rightOf(why); right != "" {
			out[what] = right
		}
	}
	for what, why := range c.client.Failing() {
		add(what, why)
	}
	for _, l := range c.source.Status().Lists {
		if l.Failing {
			add("list and watch "+l.Kind, l.LastError)
		}
	}
	if c.authority != nil {
		s := c.authority.reviewer.Status()
		add("review tokens", s.Away)
		add("get the keys that verify tokens", s.Error)
	}
	return out
}

// rightOf is what of an error of the API server says which right is missing, without the
// objects and namespaces, of which there may be many; empty if that is not what it says.
func rightOf(why string) string {
	_, right, forbidden := strings.Cut(why, "is forbidden: ")
	if !forbidden {
		return ""
	}
	right, _, _ = strings.Cut(right, " in the namespace ")
	right, _, _ = strings.Cut(right, " - error from a previous attempt") // with the port that it came from
	right, _, _ = strings.Cut(right, "\n")
	return right
}
