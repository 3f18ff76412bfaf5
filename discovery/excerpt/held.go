package excerpt

import (
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/policy"
)

const (
	// Doubt is how long a node proxy keeps what the gateway that leads now does not list,
	// while the one before did: a replica's view of its API server is behind another's by
	// less.
	Doubt = 10 * time.Second
	// LongDoubt is Doubt for more than [massRemoval] of the workloads at once: then it is
	// more likely the gateway that is wrong.
	LongDoubt   = 5 * time.Minute
	massRemoval = 0.3
	// freeRemovals is how many may always go after Doubt: of three pods one is a third.
	freeRemovals = 2
)

// Held is what a node proxy has been told of its own network, by one gateway at a time.
//
// The word of the gateway that leads holds, at once. When another one begins to lead, what
// it does not list of what the last one listed is kept in doubt for a while, and what the
// last one withdrew just before does not come back for as long: the two need not have
// heard of the same changes yet. So nothing that each of them lists vanishes because one
// of them has gone.
type Held struct {
	network, node, trustDomain string

	leader string // who leads; "" before anybody does, and of what was saved
	began  bool   // it has told everything
	anew   bool   // its first change is to come: that of another one than before, or everything once more

	base     base
	names    map[string]target // that were asked for
	hosts    map[string]int    // that names mean, and how many do
	byPod    map[string]int    // pods that addresses mean
	services map[string]discovery.Service
	pods     map[string]discovery.Workload // as they were told
	policies map[string]heldPolicy         // by name
	tells    bool                          // who leads tells policies
	policing bool                          // it has told policies
	reigns   time.Time                     // since when
	reign    int                           // counts the gateways that have led and told policies
	known    policy.Revisions              // up to which the one that leads knows them
	deleted  map[string]deletion           // policies, by name
	older    map[string]older              // what who leads says of policies, and is not taken; by name
	// scheduled are pods of this node without an address, by UID, and announced the addresses that pods have by the word
	// of this node.
	scheduled map[string]discovery.Workload
	announced map[string]announced
	outside   map[string]struct{} // UIDs of pods of this node that are not in the mesh
	// savedLabels are those of the pods of this node before the start, by UID, until a gateway tells policies.
	savedLabels map[string]map[string]string
	members     map[string]map[string]struct{} // hostname → UIDs of those that name it
	backs       map[string]backing             // what services are held for, by hostname
	bytes       int                            // that all of this costs, and what is early: see [MaxBytes]
	here        int                            // pods of this node

	doubted   map[thing]time.Time           // what the leader does not list: until when it is kept
	mass      string                        // why much is in doubt; "" if not much is
	withdrawn map[string]time.Time          // UIDs that a leader has withdrawn lately: when
	early     map[string]discovery.Workload // told by the next leader, and withdrawn by the one before
	left      map[thing]struct{}            // what there was no room for, as far as [maxLeft] goes
	bound     string                        // what of the last that was left out is too much; "" if nothing is left out
	odd       error                         // why an object in the last change is not used

	stage *change // as far as it has come; nil: none has begun

	touched map[discovery.Key]struct{}
	giving  map[discovery.Key]struct{} // what is in doubt and may give way to what is not
}

// NewHeld returns a Held of the node proxy of node.
func NewHeld(network, node, trustDomain string) *Held {
	return &Held{network: network, node: node, trustDomain: trustDomain, names: map[string]target{}, hosts: map[string]int{}, byPod: map[string]int{},
		services: map[string]discovery.Service{}, pods: map[string]discovery.Workload{}, policies: map[string]heldPolicy{}, scheduled: map[string]discovery.Workload{}, announced: map[string]announced{}, outside: map[string]struct{}{}, deleted: map[string]deletion{}, older: map[string]older{}, members: map[string]map[string]struct{}{}, backs: map[string]backing{}, left: map[thing]struct{}{}, doubted: map[thing]time.Time{},
		withdrawn: map[string]time.Time{}, early: map[string]discovery.Workload{}, touched: map[discovery.Key]struct{}{}, giving: map[discovery.Key]struct{}{}}
}

// Lead notes that gateway is the one that tells from now on, beginning with everything.
func (h *Held) Lead(gateway string) {
	h.leader, h.anew = gateway, true
	h.stage = nil
}

// Told reports whether a gateway has told everything since the process started.
func (h *Held) Told() bool { return h.began }

// Means reports whether a name or an address that was asked for means something.
func (h *Held) Means(asked string) bool { return h.names[normal(asked)] != target{} }

// Take takes one message of the gateway that leads. When it ends a change it returns what
// is different, and the names of which everything has been told. follows says which names
// the node proxy asks for still. An error is a message that makes no sense: the gateway is
// not to be followed.
func (h *Held) Take(m *pb.Excerpt, follows func(asked string) bool, now time.Time) (changes []discovery.Change, answered []string, err error) {
	if h.anew && h.stage == nil && !m.GetWhole() {
		return nil, nil, nil // on its way since this gateway has led before
	}
	if h.stage == nil {
		h.stage = newChange(m.GetWhole())
	}
	c := h.stage
	if err := h.decode(m, c); err != nil {
		h.stage = nil
		return nil, nil, err
	}
	if !m.GetEnd() {
		return nil, nil, nil
	}
	h.stage = nil
	if c.whole && c.base == nil {
		return nil, nil, malformed("everything without a network")
	}
	for _, n := range c.names {
		answered = append(answered, n.asked)
	}
	h.forget(follows)
	h.take(*c, follows, now)
	return h.changes(), answered, nil
}

func (h *Held) take(c change, follows func(string) bool, now time.Time) {
	another, until := c.whole && h.anew, now
	if c.base != nil {
		if h.tells = c.base.root != ""; h.tells {
			h.savedLabels = nil
		} else {
			c.base.root = h.base.root
		}
	}
	h.takeScheduled(&c, another)
	h.takeOutside(&c)
	if another {
		h.anew = false
		for uid := range h.early {
			h.notEarly(uid)
		}
		until = h.doubtMissing(c, now)
	}
	if c.whole {
		h.roomAgain()
	}
	h.began, h.odd = h.began || c.whole, c.why
	if c.base != nil {
		h.takeBase(*c.base, another, until)
	}
	for _, n := range c.names {
		if !follows(n.asked) {
			continue
		}
		old := h.names[n.asked]
		if _, doubted := h.doubted[thing{name: n.asked}]; n.target == (target{}) && old != n.target && (another || doubted) {
			if another {
				h.doubt(thing{name: n.asked}, until)
			}
			continue
		}
		h.trust(thing{name: n.asked})
		h.mean(n.asked, n.target)
		if another {
			continue
		}
		for uid := range h.members[n.host] { // who is not listed is no member
			if _, listed := c.pods[uid]; !listed && n.host != "" {
				h.dismiss(uid, n.host)
			}
		}
	}
	if c.whole && !another {
		h.keepOnly(c, now)
	}
	for uid, w := range c.pods { // before services: those of this node's pods have room
		if _, lately := h.withdrawn[uid]; lately && another {
			h.putEarly(w)
			continue
		}
		h.putPod(h.labelled(w))
	}
	gone := h.takePolicies(c, another, now)
	for host, s := range c.services {
		h.putService(host, s)
	}
	for _, host := range c.goneServices {
		h.dropService(host)
	}
	for _, uid := range c.gonePods {
		h.withdraw(uid, now)
	}
	h.remember(gone, now)
	h.sweep()
}

// Settle lets time pass: it returns what is different now that doubt has ended.
func (h *Held) Settle(now time.Time) []discovery.Change {
	var gone []lost
	for x, until := range h.doubted {
		if now.Before(until) || x.kind == discovery.KindPolicy && h.doubtLonger(x, now) {
			continue
		}
		h.trust(x)
		switch x.kind {
		case discovery.KindWorkload:
			h.dropPod(x.name)
			delete(h.announced, x.name)
		case discovery.KindService:
			h.dropService(x.name)
		case discovery.KindPolicy:
			if p, had := h.policies[x.name]; had && h.tells {
				gone = append(gone, lost{x.name, p, 0})
			}
			h.dropPolicy(x.name)
		case discovery.KindNetwork, discovery.KindGateway:
			h.dropFromBase(x)
		default:
			h.mean(x.name, target{})
		}
	}
	h.remember(gone, now)
	h.settleOlder(now)
	if len(h.doubted) == 0 {
		h.mass = ""
	}
	for uid, at := range h.withdrawn {
		if now.Sub(at) < Doubt {
			continue
		}
		delete(h.withdrawn, uid)
		if w, there := h.early[uid]; there {
			h.notEarly(uid)
			h.putPod(w)
		}
	}
	h.sweep()
	return h.changes()
}

// Prune drops what is held for names that follows does not know any more.
func (h *Held) Prune(follows func(asked string) bool) []discovery.Change {
	if h.forget(follows) {
		h.sweep()
	}
	return h.changes()
}

func (h *Held) forget(follows func(string) bool) (any bool) {
	for asked := range h.names {
		if !follows(asked) {
			h.trust(thing{name: asked})
			h.mean(asked, target{})
			delete(h.names, asked)
			any = true
		}
	}
	return any
}

// mean makes asked mean t.
func (h *Held) mean(asked string, t target) {
	old, had := h.names[asked]
	if h.names[asked] = t; had && old == t {
		return
	}
	if _, doubted := h.doubted[thing{name: asked}]; !doubted {
		h.back(old.host, func(b *backing) { b.names-- })
		h.back(t.host, func(b *backing) { b.names++ })
	}
	if old.host != "" {
		if h.hosts[old.host]--; h.hosts[old.host] == 0 {
			delete(h.hosts, old.host)
			h.touchMembers(old.host)
		}
	}
	if old.uid != "" {
		if h.byPod[old.uid]--; h.byPod[old.uid] == 0 {
			delete(h.byPod, old.uid)
			h.touch(podKey(old.uid))
		}
	}
	if t.host != "" {
		if h.hosts[t.host]++; h.hosts[t.host] == 1 {
			h.touchMembers(t.host)
		}
	}
	if t.uid != "" {
		h.byPod[t.uid]++
	}
}

func (h *Held) putPod(w discovery.Workload) {
	x := thing{discovery.KindWorkload, w.UID}
	h.trust(x)
	h.notEarly(w.UID)
	delete(h.withdrawn, w.UID)
	old, had := h.pods[w.UID]
	if why := h.noRoomFor(w, old, had); why != "" {
		h.dropPod(w.UID)
		h.leave(x, why)
		return
	}
	h.unenter(old, had)
	delete(h.left, x)
	h.enter(w)
	h.touch(podKey(w.UID))
}

// enter puts a pod into the books.
func (h *Held) enter(w discovery.Workload) {
	h.pods[w.UID] = w
	h.bytes += costOfWorkload(w)
	h.vouch(w, 1)
	for _, host := range w.Services {
		if h.members[host] == nil {
			h.members[host] = map[string]struct{}{}
		}
		h.members[host][w.UID] = struct{}{}
	}
}

// unenter takes a pod out of the books, if it is in them.
func (h *Held) unenter(w discovery.Workload, had bool) {
	if !had {
		return
	}
	for _, host := range w.Services {
		h.unlist(host, w.UID)
	}
	h.bytes -= costOfWorkload(w)
	h.vouch(w, -1)
}

func (h *Held) dropPod(uid string) {
	h.trust(thing{discovery.KindWorkload, uid})
	h.notEarly(uid)
	delete(h.left, thing{discovery.KindWorkload, uid})
	w, had := h.pods[uid]
	if !had {
		return
	}
	h.unenter(w, had)
	delete(h.pods, uid)
	h.touch(podKey(uid))
}

func (h *Held) unlist(host, uid string) {
	if delete(h.members[host], uid); len(h.members[host]) == 0 {
		delete(h.members, host)
	}
}

// dismiss ends that the pod is a member of host.
func (h *Held) dismiss(uid, host string) {
	w := h.pods[uid]
	h.unenter(w, true)
	w.Services = slices.DeleteFunc(slices.Clone(w.Services), func(s string) bool { return s == host })
	h.enter(w)
	h.touch(podKey(uid))
}

func (h *Held) putService(host string, s discovery.Service) {
	x := thing{discovery.KindService, host}
	h.trust(x)
	old, had := h.services[host]
	if why := h.noRoomForService(host, s, old, had); why != "" {
		h.dropService(host)
		h.leave(x, why)
		return
	}
	delete(h.left, x)
	if had {
		h.bytes -= costOfService(old)
	}
	h.bytes += costOfService(s)
	if h.services[host] = s; !had {
		h.touchMembers(host)
	}
	h.touch(serviceKey(host))
}

func (h *Held) dropService(host string) {
	h.trust(thing{discovery.KindService, host})
	delete(h.left, thing{discovery.KindService, host})
	if s, had := h.services[host]; had {
		delete(h.services, host)
		h.bytes -= costOfService(s)
		h.touch(serviceKey(host))
		h.touchMembers(host)
	}
}

func (h *Held) touchMembers(host string) {
	for uid := range h.members[host] {
		h.touch(podKey(uid))
	}
}

func (h *Held) needed(uid string) bool {
	w, has := h.pods[uid]
	return has && (w.Node == h.node || h.byPod[uid] > 0 || slices.ContainsFunc(w.Services, func(host string) bool { return h.hosts[host] > 0 }))
}

// Status is what an operator should know of it.
type Status struct {
	Gateway   string    `json:"gateway"`          // active source; empty if there is none
	Told      bool      `json:"told"`             // everything needed was received at some time
	AgeMS     int64     `json:"ageMs"`            // time since it was last known to be current; 0 while a source is active
	Cached    time.Time `json:"cached,omitzero"`  // when the data was saved, if it is from the cache and no gateway has sent it since
	Services  int       `json:"services"`         // number of known services
	Workloads int       `json:"workloads"`        // number of known workloads
	Policies  int       `json:"policies"`         // number of known policies
	Policed   bool      `json:"policed"`          // the active source has the cluster's policies; otherwise the known ones stay in force
	Names     int       `json:"names"`            // names and addresses requested from gateways
	Unknown   int       `json:"unknown"`          // requested names and addresses that do not exist
	Doubted   int       `json:"doubted"`          // objects that the active source does not list and the previous one did
	Held      string    `json:"held,omitempty"`   // why many missing objects are kept
	Older     string    `json:"older,omitempty"`  // policies for which the active source has older versions than the known ones
	LeftOut   int       `json:"leftOut,omitzero"` // received objects that exceed the limits
	Bound     string    `json:"bound,omitempty"`  // limit that the last such object exceeded: a number or a size
	Odd       string    `json:"odd,omitempty"`    // why an object in the last change is not used
}

// Status tells how it stands, but for what a Keeper knows.
func (h *Held) Status() Status {
	s := Status{Services: len(h.services), Workloads: len(h.pods), Policies: len(h.policies), Policed: h.tells, Doubted: len(h.doubted), Held: h.mass, Older: h.heldBack(), LeftOut: len(h.left), Bound: h.bound, Names: len(h.names)}
	if h.odd != nil {
		s.Odd = h.odd.Error()
	}
	for _, t := range h.names {
		if t == (target{}) {
			s.Unknown++
		}
	}
	return s
}
