package picker

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Of the many ports of pods that an origin has not reached in the life of a node proxy, those that it reaches again leave room
// for others; of more than there is room for at once it finds each out for itself, and other origins have room of their own.
func TestAnOriginRemembersWhatItDoesNotReachNow(t *testing.T) {
	o, now := newOrigins(health.DefaultConfig(), func() float64 { return 0.5 }), epoch
	key := func(i int) health.Key { return health.Key{Endpoint: mesh.EndpointID(i + 1), Port: 8080} }
	fails := func(origin string, i int) {
		for range 2 {
			o.unanswered(origin, key(i), health.Attempt{}, "connect", now)
		}
	}
	out := func(origin string) (n int) {
		o.out(origin, now, func(health.Key, *standing.Cell[OriginKey]) { n++ })
		return n
	}
	for i := range 2 * maxPerOrigin {
		fails("shop", i)
	}
	fails("cafe", 0)
	if n, other := out("shop"), out("cafe"); n != maxPerOrigin || other != 1 || o.book.Len() != maxPerOrigin+1 {
		t.Fatalf("%d are out for one origin and %d for the other, %d are remembered; want %d, 1 and %d", n, other, o.book.Len(), maxPerOrigin, maxPerOrigin+1)
	}
	now = now.Add(time.Hour)
	for i := range maxPerOrigin {
		o.asked("shop", key(i), health.Success, "", now)
		o.answered("shop", key(i), health.Attempt{}, now)
	}
	fails("shop", 2*maxPerOrigin)
	if n := out("shop"); n != 1 {
		t.Errorf("%d are out; want the one that fails now", n)
	}
	o.retain(func(health.Key) bool { return true }, func(string) bool { return false }, now)
	if o.book.Len() != 0 || len(o.of) != 0 {
		t.Errorf("%d cells of %d origins are left of those that there are no more", o.book.Len(), len(o.of))
	}
}
