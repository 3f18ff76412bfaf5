package overload

// keeping keeps a part of the room that is freed for TryAdmit while others wait, who would
// take all of it. The zero value keeps none.
type keeping struct {
	places int     // kept now, of the control's room, until somebody comes
	owed   float64 // parts of one
}

// most is how many places are kept at once when so many try in a second: for who comes in
// half a tick, and two more, so that there is one for somebody who comes seldom.
func (s *keeping) most(tried float64) int {
	if tried < 1 {
		return 0
	}
	return 2 + int(tried*tick.Seconds()/2)
}

// now is how many are kept of those that were, when so many try in a second.
func (s *keeping) now(tried float64) int {
	s.places = min(s.places, s.most(tried))
	return s.places
}

// keep reports whether the next free place is to be kept, when in the last second so many
// have tried, and so many have begun: two for each that tries, as they come unevenly, and
// half of them at most.
func (s *keeping) keep(tried, begun float64) bool {
	if s.places >= s.most(tried) {
		return false
	}
	s.owed += min(0.5, 2*tried/max(1, begun))
	if s.owed < 1 {
		return false
	}
	s.owed--
	s.places++
	return true
}

func (s *keeping) taken() { s.places = max(0, s.places-1) }

const (
	// mostTimes is how many times as many pieces of one client may be under way as
	// there are free places, at most, if there are other clients: one alone takes eight
	// ninths of a window, and who asks for less always finds room ("Dynamic Queue Length
	// Thresholds for Shared-Memory Packet Switches", Choudhury and Hahne 1998). Several
	// that ask for much may have fewer each, down to leastTimes, until one of leftFree
	// places is free: of few places none would be left otherwise.
	mostTimes  = 8
	leastTimes = 0.25
	leftFree   = 16
	// keptAway is for how many ticks a client is known after it has asked.
	keptAway = uint64(keptIdle / tick)
	// ticksToForget is from one look at those that are known to the next.
	ticksToForget = uint64(hanging / tick)
)

// clients are those of TryAdmit and AdmitOnce that have asked lately. The zero value has none.
type clients struct {
	known   map[string]*client
	waiting map[*client]struct{} // those of AdmitOnce that wait
	turn    uint64               // that was served last
	times   float64              // as many pieces of one as there are free places may be under way; 0: mostTimes
}

type client struct {
	pieces  pieces
	asked   uint64 // tick, when it did last
	waiters row    // those of AdmitOnce
	turn    uint64 // when it was served last, or came
}

// before reports whether x, which waits like o, has its turn before it: it was served
// longer ago, or its newest is newer.
func (x *client) before(o *client) bool {
	if x.turn != o.turn {
		return x.turn < o.turn
	}
	return x.waiters.newest.came > o.waiters.newest.came
}

// asks returns the client of that name, which asks for one more piece.
func (c *clients) asks(who string, now uint64) *client {
	if c.known == nil {
		c.known, c.waiting = map[string]*client{}, map[*client]struct{}{}
	}
	x := c.known[who]
	if x == nil {
		x = &client{turn: c.turn}
		c.known[who] = x
	}
	x.asked = now
	return x
}

// forget drops who has not asked for long.
func (c *clients) forget(now uint64) {
	for who, x := range c.known {
		if x.waiters.len == 0 && now-x.asked > keptAway {
			delete(c.known, who)
		}
	}
}

// leaves reports whether x may take one of so many free places: whether it leaves enough
// to others.
func (c *clients) leaves(x *client, room int, now uint64) bool {
	return room > 0 && (x == nil || len(c.known) == 1 || float64(x.pieces.underWay(now)) < c.most()*float64(room))
}

func (c *clients) most() float64 {
	if c.times == 0 {
		return mostTimes
	}
	return c.times
}

// step is called every tick with how many of a window's places are free.
func (c *clients) step(room int, window float64) {
	if len(c.known) < 2 {
		return
	}
	change := 1.05
	if float64(room) < window/leftFree {
		change = 0.9
	}
	c.times = min(max(leastTimes, change*c.most()), mostTimes)
}

func (c *clients) enter(w *waiter) {
	w.client.waiters.push(w, ofClient)
	c.waiting[w.client] = struct{}{}
}

func (c *clients) leave(w *waiter) {
	if w.client.waiters.remove(w, ofClient); w.client.waiters.len == 0 {
		delete(c.waiting, w.client)
	}
}

func (c *clients) served(x *client) {
	c.turn++
	x.turn = c.turn
}

// crowd is the client of which the most wait; nil: nobody does.
func (c *clients) crowd() (most *client) {
	for x := range c.waiting {
		if most == nil || x.waiters.len > most.waiters.len {
			most = x
		}
	}
	return most
}

const (
	coarse  = 5 // ticks of which pieces counts together
	coarses = int(hanging/tick)/coarse + 1
)

// pieces counts those of one client that are under way and began within the time of
// hanging, or up to 100 ms before. The zero value counts none.
type pieces struct {
	all  int
	at   uint64 // the last of many, in units of coarse
	many [coarses]int32
}

// advance forgets what began too long ago.
func (p *pieces) advance(now uint64) {
	to := now / coarse
	if to-p.at >= uint64(coarses) {
		*p = pieces{at: to}
		return
	}
	for p.at < to {
		p.at++
		n := &p.many[p.at%uint64(coarses)]
		p.all -= int(*n)
		*n = 0
	}
}

func (p *pieces) begin(now uint64) {
	p.advance(now)
	p.all++
	p.many[p.at%uint64(coarses)]++
}

// end notes the end of one that began at the tick.
func (p *pieces) end(tick, now uint64) {
	if p.advance(now); p.at-tick/coarse < uint64(coarses) {
		p.all--
		p.many[tick/coarse%uint64(coarses)]--
	}
}

func (p *pieces) underWay(now uint64) int {
	p.advance(now)
	return p.all
}
