package mesh

// Offer says which members of a service may get new connections to one of its
// ports: the ready ones, of a service that publishes them also those that are not
// ready; while there is none, those that are terminating and still serve.
type Offer struct {
	port            Port
	publishNotReady bool
	serving         bool // nobody is ready
}

// Offer looks at the members that a choice is among: those on one network.
func (s *Service) Offer(p Port, members []*Workload) Offer {
	o := Offer{port: p, publishNotReady: s.PublishNotReady}
	for _, w := range members {
		if o.Has(w) {
			return o
		}
	}
	o.serving = true
	return o
}

// Has reports whether w is offered.
func (o Offer) Has(w *Workload) bool {
	if w.Plain || w.Capacity == 0 || len(w.Addresses) == 0 || w.Target(o.port) == 0 {
		return false
	}
	switch w.State {
	case Ready:
		return true
	case NotReady:
		return o.publishNotReady
	case Serving:
		return o.serving
	}
	return false
}
