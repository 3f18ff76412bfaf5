package controller

import (
	"errors"
	"reflect"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/controller/vip"
)

// errFought is why a write waits that was taken several times, and did not stay.
var errFought = errors.New("the API server takes it, and soon after it is something else again: a mutating webhook or another controller changes it: have that leave alone what has the label app.kubernetes.io/managed-by: isthmus-controller, and ServiceExports' conditions")

const (
	// foughtWithin is how soon the same has to be written again to count.
	foughtWithin = 5 * time.Minute
	// foughtFrom is how many times in a row that is nobody's who corrects it by hand.
	foughtFrom = 2
)

// undoes are the writes that end what another has made.
var undoes = map[string]string{imports.Create.String(): imports.Delete.String(), imports.Delete.String(): imports.Create.String()}

// fights remember what was written last, so that what somebody else changes back each time is written
// ever more rarely, and an operator hears of it. Not safe for concurrent use.
type fights struct {
	of map[cause]*fight
}

// fight is a write that was done.
type fight struct {
	want  any // what it was to make
	at    time.Time
	times int // how many times in a row the same had been written before
}

func newFights() *fights { return &fights{map[cause]*fight{}} }

// did takes in that a write was done, and reports whether somebody changes that back each time.
func (f *fights) did(do string, n vip.Name, want any, now time.Time) bool {
	c := cause{do, n.Namespace, n.Name}
	x := f.of[c]
	if x == nil || now.Sub(x.at) > foughtWithin || !reflect.DeepEqual(x.want, want) {
		x = &fight{want: want, times: -1}
		f.of[c] = x
	}
	if undone, ok := undoes[do]; ok {
		delete(f.of, cause{undone, n.Namespace, n.Name}) // who did not let it stay was this process
	}
	x.at = now
	x.times++
	return x.times >= foughtFrom
}

// another reports whether what is wanted now is not what was written last.
func (f *fights) another(do string, n vip.Name, want any) bool {
	x := f.of[cause{do, n.Namespace, n.Name}]
	return x == nil || !reflect.DeepEqual(x.want, want)
}

// forget drops what was written so long ago that it does not count.
func (f *fights) forget(now time.Time) {
	for c, x := range f.of {
		if now.Sub(x.at) > foughtWithin {
			delete(f.of, c)
		}
	}
}
