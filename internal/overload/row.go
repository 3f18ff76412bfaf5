package overload

import "time"

// waiter is one caller of Admit or AdmitOnce that has to wait. It is in two rows, of
// all that wait and of those of its client.
type waiter struct {
	until  time.Time   // when it is refused
	client *client     // nil: not by AdmitOnce
	answer chan answer // buffered

	came   uint64 // greater than that of all who came before
	queued bool
	places [2]place
}

// place is who stands beside a waiter in one of its rows.
type place struct{ older, newer *waiter }

// line says which of a waiter's two rows one is.
type line int

const (
	ofAll line = iota
	ofClient
)

// row is some that wait, in the order in which they came. The zero value is empty.
// Whatever is asked of it, but a walk through all, costs the same however many wait.
type row struct {
	oldest, newest *waiter
	len            int
}

func (r *row) push(w *waiter, l line) {
	w.places[l] = place{older: r.newest}
	if r.newest == nil {
		r.oldest = w
	} else {
		r.newest.places[l].newer = w
	}
	r.newest = w
	r.len++
}

func (r *row) remove(w *waiter, l line) {
	at := w.places[l]
	if at.older == nil {
		r.oldest = at.newer
	} else {
		at.older.places[l].newer = at.newer
	}
	if at.newer == nil {
		r.newest = at.older
	} else {
		at.newer.places[l].older = at.older
	}
	w.places[l] = place{}
	r.len--
}

// each calls f with those of all that wait, the oldest first; f may take out its own.
func (r *row) each(f func(*waiter)) {
	for w := r.oldest; w != nil; {
		next := w.places[ofAll].newer
		f(w)
		w = next
	}
}
