package main

import (
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// pod is what a process of its own network calls it.
type pod struct {
	uid  string
	name string // namespace/name, if the UID does not say it
	port uint16 // where its application listens; 0: not said
}

// podNames are pods by what other networks know them by: the ID, or the UID that a
// discovery file says. Of a network that is known by its shares alone, a node proxy knows
// no names.
type podNames map[string]pod

// add takes the name of a workload of network. What is an ID already stays one.
func (n podNames) add(network, uid, name string, port uint16) {
	if name != "" {
		n[uid] = pod{uid, name, port}
	}
	if _, err := mesh.ParseEndpointID(uid); err != nil {
		n[mesh.EndpointIDOf(network, uid).String()] = pod{uid, name, port}
	}
}

// nameExplained names the endpoints of shares that another of the processes lists as pods.
func nameExplained(processes []answer.Explanation) {
	names := podNames{}
	for _, e := range processes {
		for _, v := range e.Candidates {
			if v.Kind == "pod" {
				names.add(e.Network, v.Name, v.Pod, v.Port)
			}
		}
	}
	for _, e := range processes {
		for _, v := range e.Candidates {
			for i, c := range v.Endpoints {
				if p, ok := names[c.Endpoint]; ok {
					v.Endpoints[i].Endpoint, v.Endpoints[i].Pod, v.Endpoints[i].Port = p.uid, p.name, p.port
				}
			}
		}
	}
}

// nameStatus names the endpoints that are out by the rows of processes of their own network.
func nameStatus(list []answer.Status) {
	names := podNames{}
	for _, s := range list {
		for _, r := range s.Services {
			for _, o := range r.Out {
				if r.Network == s.Network {
					names.add(s.Network, o.Endpoint, o.Pod, 0)
				}
			}
		}
	}
	for _, s := range list {
		for _, r := range s.Services {
			for i, o := range r.Out {
				if p, ok := names[o.Endpoint]; ok {
					r.Out[i].Endpoint, r.Out[i].Pod = p.uid, p.name
				}
			}
		}
	}
}
