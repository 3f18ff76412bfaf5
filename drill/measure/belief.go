package measure

import (
	"slices"
	"strings"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// Belief is a span in which a process left something out.
type Belief struct {
	Process string   `json:"process"`
	Role    string   `json:"role"` // gateway, client or node
	Network string   `json:"network"`
	What    string   `json:"what"`  // ejected, told, hop or networkService
	About   string   `json:"about"` // pod, or network
	Port    string   `json:"port"`  // name of the port; empty for all
	From    float64  `json:"from"`
	To      *float64 `json:"to"` // null: until the end
	Source  string   `json:"source,omitempty"`
}

// beliefKey is what a process can hold at most one belief on at a time.
type beliefKey struct{ process, what, about, port string }

// beliefs turns edges into spans. A "told" belief is one exception of a
// federation summary, as the process was told it.
func (r *Record) beliefs() []Belief {
	open := map[beliefKey]int{}
	out := []Belief{}
	begin := func(k beliefKey, e Event) {
		if _, ok := open[k]; ok {
			return
		}
		role, network := r.role(k.process)
		open[k] = len(out)
		out = append(out, Belief{Process: k.process, Role: role, Network: network, What: k.what, About: k.about, Port: k.port, From: e.At.Seconds(), Source: e.Source})
	}
	end := func(k beliefKey, e Event) {
		if i, ok := open[k]; ok {
			out[i].To = seconds(e.At)
			delete(open, k)
		}
	}
	for _, e := range r.Events {
		switch e.Kind {
		case OutlierChanged:
			k := r.beliefOf(e)
			if e.Edge == "ejected" {
				begin(k, e)
			} else {
				end(k, e)
			}
		case Known:
			told := map[string]bool{}
			for _, id := range e.Exceptions {
				if p, ok := r.Layout.PodByEndpoint(id); ok {
					told[p.Name] = true
					begin(beliefKey{e.Process, "told", p.Name, r.portName(e.Port)}, e)
				}
			}
			for k := range open {
				p, _ := r.Layout.Pod(k.about)
				if k.process == e.Process && k.what == "told" && k.port == r.portName(e.Port) && p.Network == e.Network && !told[k.about] {
					end(k, e)
				}
			}
		}
	}
	r.endWithProcess(out)
	slices.SortStableFunc(out, func(a, b Belief) int {
		return strings.Compare(a.About+"\x00"+a.Port+"\x00"+a.Role+a.Process, b.About+"\x00"+b.Port+"\x00"+b.Role+b.Process)
	})
	return out
}

// endWithProcess ends the beliefs of a process when it is killed: it logs no end of them, and the
// process that takes its place begins without any.
func (r *Record) endWithProcess(beliefs []Belief) {
	for _, o := range r.Outages {
		if o.Effect == 0 || o.Fault.Kind != scenario.GatewayKill && o.Fault.Kind != scenario.NodeProxyKill {
			continue
		}
		for i := range beliefs {
			b, killed := &beliefs[i], o.Effect.Seconds()
			if b.Process == o.Victims.Process && b.From < killed && (b.To == nil || *b.To > killed) {
				b.To = &killed
			}
		}
	}
}

func (r *Record) beliefOf(e Event) beliefKey {
	k := beliefKey{process: e.Process, what: "ejected", port: r.portName(e.Port)}
	switch e.Scope {
	case "network_service":
		k.what, k.about = "networkService", e.Network
	case "gateway":
		k.what, k.about, k.port = "gateway", e.Gateway, ""
	default:
		if p, ok := podOf(r.Layout, e); ok {
			k.about = p.Name
		} else {
			k.about = e.Endpoint
		}
		if e.Scope == "hop" {
			k.what, k.port = "hop", ""
		}
	}
	return k
}

// portName maps a service or target port to its name in the scenario.
func (r *Record) portName(number uint16) string {
	for _, p := range r.Layout.Scenario.Ports() {
		if p.Port == number || p.Target == number {
			return p.Name
		}
	}
	return ""
}

// role says what kind of process name is, and where.
func (r *Record) role(name string) (role, network string) {
	for _, g := range r.Layout.Gateways {
		if g.Name == name {
			return "gateway", g.Network
		}
	}
	for _, c := range r.Layout.Clients {
		if c.Node == name {
			return "client", c.Network
		}
	}
	for _, n := range r.Layout.Nodes {
		if n.Name == name {
			return "node", n.Network
		}
	}
	return "", ""
}
