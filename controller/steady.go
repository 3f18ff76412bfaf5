package controller

import (
	"time"

	"github.com/isthmus-mesh/isthmus/controller/notices"
)

const (
	// steadyAfter is how long something has to be wrong with the processes or their links before
	// an Event says so: what a start or a restart brings about ends sooner.
	steadyAfter = 10 * time.Second
	// steadyGone is how long it has to be right before that is taken back.
	steadyGone = 3 * time.Second
	// steadyAnew is how long a text stays, though the last error of what it is about may be
	// another one each time.
	steadyAnew = 5 * time.Minute
)

// steady decides which of what is wrong with processes and links is told, so that what comes
// and goes is no series of Events. The zero value is empty. Not safe for concurrent use.
type steady struct {
	stands map[matter]*known
}

// matter is what may be wrong, however it is said.
type matter struct {
	at      notices.Object
	reason  string
	subject string
}

// fault is a matter that is wrong.
type fault struct {
	matter
	text string // with the remedy
}

// known is a matter that was found wrong.
type known struct {
	since, seen time.Time // when it was found first and last
	text        string    // that is told
	told        time.Time // since when; zero: it is not
}

// settle returns what is to be told at which object where found is wrong at now.
func (s *steady) settle(found []fault, now time.Time) map[notices.Object][]notices.Notice {
	if s.stands == nil {
		s.stands = map[matter]*known{}
	}
	for _, f := range found {
		x := s.stands[f.matter]
		if x == nil {
			x = &known{since: now}
			s.stands[f.matter] = x
		}
		if x.seen = now; now.Sub(x.since) >= steadyAfter && (x.told.IsZero() || now.Sub(x.told) >= steadyAnew) {
			x.text, x.told = f.text, now
		}
	}
	out := map[notices.Object][]notices.Notice{}
	for m, x := range s.stands {
		switch {
		case now.Sub(x.seen) >= steadyGone, x.told.IsZero() && x.seen != now:
			delete(s.stands, m)
		case !x.told.IsZero():
			out[m.at] = append(out[m.at], notices.Notice{Reason: m.reason, Message: x.text})
		}
	}
	return out
}
