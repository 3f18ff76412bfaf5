package nodeproxy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// schedule is one run of the torture: a world, and what happens in it, step by
// step. Its text, as String prints it, can be replayed.
type schedule struct {
	world options
	steps []step
}

// options are what differs from world to world. Sizes are in bytes.
type options struct {
	Seed           uint64        // of what the applications send
	Delay          time.Duration // one way, of each link
	LinkBuffer     int           // in flight on a link, per direction
	AppBuffer      int           // the same between a proxy and an application
	FirstWindow    int
	StreamWindow   int
	ConnWindow     int
	PodStreams     int // that a pod's node proxy lets one session have
	GatewayStreams int
	Pods           int  // per service
	Kept           bool // sessions with far pods are kept
	Early          bool
	Attempts       int // repeats of a connect
	Hedges         int // that the budget has at first; 0: as many as by default
	// Applications accept by their pod, as steps say, and not by connection; those of the first pods
	// of both services always do. Health moves, and the budget is not refilled.
	Places   bool
	Replicas int // gateways behind one address, if more than one; each connect meets any of them
}

// step is one thing that happens, After the step before it. Which fields count
// depends on op.
type step struct {
	after time.Duration
	op    op
	conn  int
	side  side
	link  link
	n     int
}

type op string

const (
	opOpen   op = "open"   // conn: to a near pod (link pods) or a far one (link gateway); the application accepts after n ms
	opRefuse op = "refuse" // the same, and the application refuses
	opHang   op = "hang"   // the same, and the application never accepts
	opLate   op = "late"   // the same, and only the application that is asked first takes that long; others accept at once
	opOnly   op = "only"   // likewise, and others refuse
	opMixed  op = "mixed"  // the same, and each application accepts, refuses or hangs in its own way, drawn from n
	opServes op = "serves" // the application of a pod (conn, from 0) of link pods or gateway accepts after n ms
	opSpurns op = "spurns" // likewise, it refuses
	opSulks  op = "sulks"  // likewise, it never accepts
	opSend   op = "send"   // side of conn sends n bytes more
	opEnd    op = "end"    // side of conn has nothing more to say: FIN after all that it was to send
	opPart   op = "part"   // likewise, and it resets right behind that FIN
	opLeave  op = "leave"  // side of conn closes at once
	opReset  op = "reset"  // side of conn resets at once
	opStop   op = "stop"   // side of conn stops reading
	opSlow   op = "slow"   // side of conn reads n bytes per millisecond
	opRead   op = "read"   // side of conn reads as fast as it can
	opCut    op = "cut"    // every connection of link is cut
	opKill   op = "kill"   // the same, by a FIN in both directions, as the kernel ends the connections of a process
	opUp     op = "up"     // link holds back for n ms what goes towards the pods
	opDown   op = "down"   // link holds back for n ms what goes towards the client
	opFreeze op = "freeze" // link holds back both for n ms
	opDrain  op = "drain"  // the servers of link send GOAWAY, serve what they have and take new sessions
	opClose  op = "close"  // the servers of link close their sessions
)

type side string

const (
	client side = "client"
	server side = "server"
)

// link is a kind of connections between proxies.
type link string

const (
	linkPods    link = "pods"    // client's node proxy to a near pod's
	linkGateway link = "gateway" // client's node proxy to the gateway
	linkFar     link = "far"     // gateway to a far pod's node proxy
)

var allLinks = []link{linkPods, linkGateway, linkFar}

func (o op) opens() bool {
	return o == opOpen || o == opRefuse || o == opHang || o == opLate || o == opOnly || o == opMixed
}
func (o op) onPod() bool  { return o == opServes || o == opSpurns || o == opSulks }
func (o op) onLink() bool { return strings.Contains("cut kill up down freeze drain close", string(o)) }

func (s step) String() string {
	text := fmt.Sprintf("+%v %s", s.after, s.op)
	switch {
	case s.op.opens():
		return fmt.Sprintf("%s c%d %s %d", text, s.conn, s.link, s.n)
	case s.op.onPod():
		return fmt.Sprintf("%s p%d %s %d", text, s.conn, s.link, s.n)
	case s.op.onLink():
		return fmt.Sprintf("%s %s %d", text, s.link, s.n)
	}
	return fmt.Sprintf("%s c%d %s %d", text, s.conn, s.side, s.n)
}

func (s schedule) String() string {
	world, err := json.Marshal(s.world)
	if err != nil {
		panic(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "world %s\n", world)
	for _, st := range s.steps {
		fmt.Fprintln(&b, st)
	}
	return b.String()
}

// parseSchedule reads what String has printed.
func parseSchedule(text string) (s schedule, err error) {
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if world, ok := strings.CutPrefix(line, "world "); ok {
			err = json.Unmarshal([]byte(world), &s.world)
		} else {
			var st step
			st, err = parseStep(line)
			s.steps = append(s.steps, st)
		}
		if err != nil {
			return s, fmt.Errorf("line %d: %q: %w", i+1, line, err)
		}
	}
	return s, nil
}

func parseStep(line string) (s step, err error) {
	var after string
	if _, err = fmt.Sscan(line, &after, &s.op); err != nil {
		return s, err
	}
	if s.after, err = time.ParseDuration(strings.TrimPrefix(after, "+")); err != nil {
		return s, err
	}
	rest := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(strings.TrimPrefix(line, after)), string(s.op)))
	switch {
	case s.op.opens():
		_, err = fmt.Sscanf(rest, "c%d %s %d", &s.conn, &s.link, &s.n)
	case s.op.onPod():
		_, err = fmt.Sscanf(rest, "p%d %s %d", &s.conn, &s.link, &s.n)
	case s.op.onLink():
		_, err = fmt.Sscanf(rest, "%s %d", &s.link, &s.n)
	default:
		_, err = fmt.Sscanf(rest, "c%d %s %d", &s.conn, &s.side, &s.n)
	}
	return s, err
}

// generate makes the schedule of seed.
func generate(seed uint64) schedule {
	g := &generator{rng: rand.New(rand.NewPCG(seed, 1)), ended: map[string]bool{}}
	g.theme = themes[g.rng.IntN(len(themes))]
	s := schedule{world: g.world(seed)}
	for n := 4 + g.rng.IntN(36); len(g.steps) < n; {
		g.next()
	}
	s.steps = g.steps
	return s
}

// theme is how likely each kind of step is; what interacts is to meet.
type theme struct {
	opens, sends, ends, breaks, paces, faults, servers, clogs int
	burst                                                     bool // connections come together
	quick                                                     bool // steps follow each other closely
	large                                                     bool // much is sent
}

var themes = []theme{
	{opens: 4, sends: 10, ends: 6, breaks: 0, paces: 3},                                    // nothing breaks
	{opens: 4, sends: 10, ends: 4, breaks: 4, paces: 4},                                    // applications break off
	{opens: 5, sends: 6, ends: 2, breaks: 5, paces: 1, quick: true},                        // while tunnels open
	{opens: 3, sends: 12, ends: 4, breaks: 4, paces: 3, faults: 2, large: true},            // much is under way
	{opens: 1, sends: 1, ends: 2, breaks: 1, paces: 1, clogs: 3, large: true},              // queues are full
	{opens: 4, sends: 8, ends: 4, breaks: 2, paces: 2, faults: 3, servers: 2},              // the network breaks
	{opens: 10, sends: 8, ends: 6, breaks: 1, paces: 1, servers: 1, burst: true},           // many come at once
	{opens: 4, sends: 8, ends: 6, breaks: 1, paces: 1, faults: 1, servers: 3, quick: true}, // servers go
}

type generator struct {
	rng   *rand.Rand
	theme theme
	steps []step
	conns int
	sent  int
	ended map[string]bool // sides that have said all
}

// torturedBytes bounds what one schedule sends, in bytes: it is to be quick.
const torturedBytes = 2 << 20

// maxTortured bounds the connections of one schedule.
const maxTortured = 22

func pickOne[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

func (g *generator) world(seed uint64) options {
	r := g.rng
	o := options{
		Seed:       seed,
		Delay:      pickOne(r, 0, 100*time.Microsecond, time.Millisecond, 8*time.Millisecond, 40*time.Millisecond),
		LinkBuffer: pickOne(r, 4<<10, 32<<10, 128<<10, 256<<10, 1<<20),
		AppBuffer:  pickOne(r, 1<<10, 4<<10, 32<<10, 128<<10),
		PodStreams: pickOne(r, 1, 2, 3, 5, 100), GatewayStreams: pickOne(r, 1, 3, 10, 100),
		Pods: 1 + r.IntN(4), Kept: r.IntN(3) > 0, Early: r.IntN(5) > 0, Attempts: pickOne(r, 2, 8, 8),
	}
	if g.theme.faults+g.theme.servers == 0 { // else what breaks is repeated from the same budget
		o.Hedges = r.IntN(4)
	}
	// A window must hold more than one TLS record of an inner session.
	o.StreamWindow = pickOne(r, 32<<10, 64<<10, 256<<10, 512<<10)
	o.FirstWindow = max(32<<10, pickOne(r, o.StreamWindow, o.StreamWindow/4))
	o.ConnWindow = min(max(64<<10, o.StreamWindow*pickOne(r, 1, 2, 4)), 1<<20)
	if g.theme.clogs > 0 { // a queue is full before a window is used up
		o.StreamWindow, o.FirstWindow, o.ConnWindow = 512<<10, 512<<10, 1<<20
		o.LinkBuffer, o.AppBuffer = pickOne(r, 4<<10, 32<<10), 128<<10
		o.PodStreams, o.GatewayStreams, o.Pods, o.Kept = 100, 100, 1, true
	}
	return o
}

func (g *generator) next() {
	t := g.theme
	pick := g.rng.IntN(t.opens + t.sends + t.ends + t.breaks + t.paces + t.faults + t.servers + t.clogs)
	for i, weight := range []int{t.opens, t.sends, t.ends, t.breaks, t.paces, t.faults, t.servers, t.clogs} {
		if pick -= weight; pick < 0 {
			[]func(){g.open, g.send, g.end, g.breakOff, g.pace, g.fault, g.serverStep, g.clog}[i]()
			return
		}
	}
}

func (g *generator) add(s step) {
	s.after = g.pause()
	g.steps = append(g.steps, s)
}

func (g *generator) pause() time.Duration {
	ms := time.Millisecond
	if g.theme.quick {
		return pickOne(g.rng, 0, 0, 100*time.Microsecond, ms, 5*ms, 20*ms, 60*ms)
	}
	return pickOne(g.rng, 0, 0, 0, 300*time.Microsecond, 2*ms, 10*ms, 50*ms, 200*ms, 1500*ms)
}

func (g *generator) open() {
	if g.conns >= maxTortured-6 {
		return
	}
	n := 1
	if g.theme.burst {
		n = 1 + g.rng.IntN(6)
	}
	to := pickOne(g.rng, linkPods, linkGateway)
	for range n {
		s := step{op: opOpen, conn: g.conns, link: to, n: pickOne(g.rng, 0, 0, 0, 3, 30, 400)}
		if !g.theme.burst {
			switch g.rng.IntN(16) {
			case 0:
				s.op = opRefuse
			case 1:
				s.op = opHang
			case 2, 3, 4:
				s.op, s.n = opLate, g.late()
			case 5, 6:
				s.op, s.n = opOnly, g.late()
			case 7, 8, 9:
				s.op, s.n = opMixed, g.rng.IntN(1000)
			}
		}
		g.conns++
		g.add(s)
		if n > 1 {
			g.steps[len(g.steps)-1].after = 0
		}
	}
}

// late is about as long as it takes until an attempt is withdrawn, or longer.
func (g *generator) late() int {
	return pickOne(g.rng, lateness...)
}

var lateness = []int{99, 100, 101, 102, 116, 117, 118, 180, 181, 260, 300, 700, 1500}

// mixed is how one of several applications accepts, drawn from seed.
func mixed(seed uint64) step {
	rng := rand.New(rand.NewPCG(seed, 2))
	s := step{op: opOpen}
	switch rng.IntN(8) {
	case 0, 1:
		s.op = opRefuse
	case 2:
		s.op = opHang
	case 3, 4, 5:
		s.n = pickOne(rng, lateness...)
	}
	return s
}

// someone picks a side of a connection, rather a late one.
func (g *generator) someone() (conn int, s side, ok bool) {
	if g.conns == 0 {
		g.open()
		return 0, "", false
	}
	conn = g.rng.IntN(g.conns)
	if g.rng.IntN(2) == 0 {
		conn = g.conns - 1
	}
	return conn, pickOne(g.rng, client, server), true
}

func (g *generator) send() {
	c, s, ok := g.someone()
	if !ok || g.ended[fmt.Sprint(c, s)] {
		return
	}
	n := pickOne(g.rng, 1, 10, 100, 1000, 5000, 8191, 8192, 16<<10-1, 16<<10, 16<<10+1, 40_000, 65_000, 100_000)
	if g.theme.large {
		n = pickOne(g.rng, 1, 1000, 20_000, 65_000, 131_000, 180_000, 200_000, 256_000, 300_000)
	}
	if g.sent+n > torturedBytes {
		return
	}
	g.sent += n
	g.add(step{op: opSend, conn: c, side: s, n: n})
}

func (g *generator) end() {
	if c, s, ok := g.someone(); ok && !g.ended[fmt.Sprint(c, s)] {
		g.ended[fmt.Sprint(c, s)] = true
		how := opEnd
		if g.theme.breaks > 0 && g.rng.IntN(4) == 0 {
			how = opPart
			g.ended[fmt.Sprint(c, s)+"gone"] = true
		}
		g.add(step{op: how, conn: c, side: s})
	}
}

func (g *generator) breakOff() {
	if c, s, ok := g.someone(); ok && !g.ended[fmt.Sprint(c, s)+"gone"] {
		g.ended[fmt.Sprint(c, s)], g.ended[fmt.Sprint(c, s)+"gone"] = true, true
		g.add(step{op: pickOne(g.rng, opReset, opReset, opReset, opLeave), conn: c, side: s})
	}
}

func (g *generator) pace() {
	if c, s, ok := g.someone(); ok {
		g.add(step{op: pickOne(g.rng, opStop, opStop, opSlow, opRead), conn: c, side: s, n: pickOne(g.rng, 10, 300, 4000)})
	}
}

func (g *generator) fault() {
	o := pickOne(g.rng, opCut, opKill, opUp, opDown, opUp, opDown, opFreeze)
	n := pickOne(g.rng, 5, 50, 300, 900, 900)
	if o == opFreeze {
		n = pickOne(g.rng, 100, 900, 5000, 15_000, 45_000)
	}
	g.add(step{op: o, link: pickOne(g.rng, allLinks...), n: n})
}

// clog has several connections of one session fill its queue behind a link that
// holds back, and some of them break off.
func (g *generator) clog() {
	first, n := g.conns, 2+g.rng.IntN(3)
	if first+n > maxTortured {
		g.send()
		return
	}
	to, hold, from, other := pickOne(g.rng, linkPods, linkGateway), opUp, client, server
	if g.rng.IntN(2) == 0 {
		hold, from, other = opDown, server, client
	}
	quick := func(s step) { g.steps = append(g.steps, s) }
	for ; g.conns < first+n; g.conns++ {
		quick(step{op: opOpen, conn: g.conns, link: to})
	}
	quick(step{op: hold, link: to, n: 900, after: 600 * time.Millisecond})
	for range n + g.rng.IntN(n) {
		size := pickOne(g.rng, 20_000, 65_000, 131_000, 190_000, 262_000)
		g.sent += size
		quick(step{op: opSend, conn: first + g.rng.IntN(n), side: from, n: size, after: time.Millisecond})
	}
	for range 1 + g.rng.IntN(n) {
		quick(step{op: opReset, conn: first + g.rng.IntN(n), side: pickOne(g.rng, from, other, other), after: time.Millisecond})
	}
	g.add(step{op: opRead, conn: first, side: other})
}

func (g *generator) serverStep() {
	g.add(step{op: pickOne(g.rng, opDrain, opDrain, opClose), link: pickOne(g.rng, allLinks...)})
}
