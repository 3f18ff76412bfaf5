package overload

// keeping keeps a part of the room that is freed for TryAdmit while others wait, who would
// take all of it. The zero value keeps none.
type keeping struct {
	places int     // kept now, of the control's room
	owed   float64 // parts of one
	tick   uint64  // when they were kept: for no longer than that
}

// renew gives up what nobody came for until the end of the tick.
func (s *keeping) renew(now uint64) {
	if s.tick != now {
		s.tick, s.places = now, 0
	}
}

// keep reports whether the next free place is to be kept, when so many have tried lately
// and so many asked that may wait: as large a part as they are, and half at most.
func (s *keeping) keep(tried, asked float64) bool {
	if tried < 1 {
		return false
	}
	s.owed += min(0.5, tried/(tried+asked))
	if s.owed < 1 {
		return false
	}
	s.owed--
	s.places++
	return true
}

func (s *keeping) taken() { s.places = max(0, s.places-1) }

// clients are those of AdmitOnce that wait. The zero value has none.
type clients struct {
	waiting map[string]*client
	turn    uint64 // that was served last
}

type client struct {
	who     string
	waiting int
	turn    uint64 // when it was served last, or came
}

func (c *clients) enter(who string) *client {
	if c.waiting == nil {
		c.waiting = map[string]*client{}
	}
	x := c.waiting[who]
	if x == nil {
		x = &client{who: who, turn: c.turn}
		c.waiting[who] = x
	}
	x.waiting++
	return x
}

func (c *clients) leave(x *client) {
	if x.waiting--; x.waiting == 0 {
		delete(c.waiting, x.who)
	}
}

func (c *clients) served(x *client) {
	c.turn++
	x.turn = c.turn
}

// of is how many of who wait.
func (c *clients) of(who string) int {
	if x := c.waiting[who]; x != nil {
		return x.waiting
	}
	return 0
}

// most is the client of which the most wait; nil: nobody does.
func (c *clients) most() (most *client) {
	for _, x := range c.waiting {
		if most == nil || x.waiting > most.waiting {
			most = x
		}
	}
	return most
}
