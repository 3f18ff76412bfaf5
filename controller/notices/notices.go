// Package notices decides which Events are written at objects that are problems, and when
// ([Board]).
//
// It promises that what stands is said once and then again before the API server forgets
// it, that what has ended is taken back once and not said any more, that of one text at one object there is
// one Event, and that whatever objects say, no more than so many are written in a time.
// Beyond so many notices it knows only which objects it has left out, and names them when
// there is room.
//
// Pure: time is an argument.
package notices

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"
)

// Kind is that of an object.
type Kind uint8

// The kinds that Events are written at.
const (
	_ Kind = iota
	Namespace
	Service
	Pod
	ServiceExport
	ServiceImport
	ConfigMap
	Deployment
	AuthorizationPolicy
	PeerAuthentication
)

// Object is one of the API server.
type Object struct {
	Kind            Kind
	Namespace, Name string // Namespace is empty for a namespace
}

// String returns the object for people.
func (o Object) String() string { return strings.TrimPrefix(o.Namespace+"/"+o.Name, "/") }

// Notice is one thing that is wrong with an object.
type Notice struct {
	Object
	Reason  string // one word, in the form of Kubernetes' reasons
	Message string // with the remedy
}

// maxMessage is how much is said of a message: an Event takes 1024 bytes.
const maxMessage = 1000

// ID names the Event of n in its namespace: the same for the same object and text.
func (n Notice) ID() string {
	sum := sha256.Sum256([]byte(string(rune(n.Kind)) + "\x00" + n.Reason + "\x00" + n.Message))
	name := n.Name
	if len(name) > 200 {
		name = name[:200]
	}
	return strings.TrimRight(name, ".-") + "." + hex.EncodeToString(sum[:6])
}

const (
	// again is when a notice that stands is said again: the API server forgets an Event
	// after an hour.
	again = 40 * time.Minute
	// retry is when one is tried again that could not be written.
	retry = time.Minute
	// perObject is how many notices of one object are told.
	perObject = 8
	// maxNotices is how many stand at once; the rest waits for room.
	maxNotices = 5_000
	// burst is how many are written at once, and every is how long each further one takes.
	burst = 25
	every = time.Second
)

// Board is what stands and what was said of it. Not safe for concurrent use; the zero
// Board is empty.
type Board struct {
	stands map[Object][]Notice
	count  int
	next   map[Notice]time.Time // when it is to be said; those that stand
	said   map[Notice]struct{}  // of those that stand, and were due once
	ended  []Notice             // that were said and stand no more, to be taken back; at most maxNotices
	tokens float64
	filled time.Time
	out    map[Object]int // how many notices of each were left out, for want of room
	left   int            // their sum
	limit  int            // how many stand at once; maxNotices
}

// Set makes list what is wrong with an object; empty is nothing.
func (b *Board) Set(o Object, list []Notice, now time.Time) {
	if b.stands == nil {
		b.stands, b.next, b.said, b.tokens, b.filled = map[Object][]Notice{}, map[Notice]time.Time{}, map[Notice]struct{}{}, burst, now
		b.out, b.limit = map[Object]int{}, cmp.Or(b.limit, maxNotices)
	}
	all := tidy(o, list)
	list = all[:min(len(all), perObject)]
	for _, n := range b.stands[o] {
		if !slices.Contains(all, n) {
			b.end(n)
		} else if !slices.Contains(list, n) { // it stands still, and is not told any more
			delete(b.next, n)
			delete(b.said, n)
		}
	}
	b.count -= len(b.stands[o])
	delete(b.stands, o)
	b.left -= b.out[o]
	delete(b.out, o)
	if room := b.limit - b.count; len(list) > room {
		b.out[o] = len(list) - room
		b.left += b.out[o]
		for _, n := range list[room:] {
			delete(b.next, n)
			delete(b.said, n)
		}
		list = list[:room]
	}
	for _, n := range list {
		if _, known := b.next[n]; !known {
			b.next[n] = now
			if i := slices.Index(b.ended, n); i >= 0 {
				b.ended = slices.Delete(b.ended, i, i+1)
			}
		}
	}
	if len(list) > 0 {
		b.stands[o] = list
		b.count += len(list)
	}
}

// end takes note that n stands no more.
func (b *Board) end(n Notice) {
	delete(b.next, n)
	if _, said := b.said[n]; said && len(b.ended) < maxNotices {
		b.ended = append(b.ended, n)
	}
	delete(b.said, n)
}

// Ended returns what was said, does not stand any more, and is to be taken back now: as much as
// may be written beside what Due has returned. It is returned once; Keep it for later if it could not be written.
func (b *Board) Ended() (out []Notice) {
	n := min(len(b.ended), int(b.tokens))
	out, b.ended = slices.Clone(b.ended[:n]), slices.Delete(b.ended, 0, n)
	b.tokens -= float64(n)
	return out
}

// Keep says that list could not be taken back: it is returned by Ended again, but for what stands
// by then.
func (b *Board) Keep(list []Notice) {
	for _, n := range list {
		if _, stands := b.next[n]; !stands && len(b.ended) < maxNotices {
			b.ended = append(b.ended, n)
		}
	}
}

// Waiting returns objects of which notices were left out and for which there is room now:
// Set them again, also to nothing.
func (b *Board) Waiting() (out []Object) {
	room := b.limit - b.count
	for o, n := range b.out {
		if room <= 0 {
			break
		}
		out = append(out, o)
		room -= n
	}
	return out
}

// tidy returns list as it is told, each once.
func tidy(o Object, list []Notice) (out []Notice) {
	for _, n := range list {
		n.Object = o
		if len(n.Message) > maxMessage {
			n.Message = strings.ToValidUTF8(n.Message[:maxMessage], "") + "… (cut)"
		}
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// Due returns what is to be written now, at most as much as may be, the longest due first,
// and when to ask again. What is returned counts as said.
func (b *Board) Due(now time.Time) (due []Notice, wait time.Duration) {
	if passed := now.Sub(b.filled); passed > 0 {
		b.tokens = min(burst, b.tokens+float64(passed)/float64(every))
		b.filled = now
	}
	wait = again
	for n, at := range b.next {
		if at.After(now) {
			wait = min(wait, at.Sub(now))
			continue
		}
		due = append(due, n)
	}
	slices.SortFunc(due, func(x, y Notice) int {
		return cmp.Or(b.next[x].Compare(b.next[y]), cmp.Compare(x.Kind, y.Kind), strings.Compare(x.Object.String(), y.Object.String()), strings.Compare(x.Message, y.Message))
	})
	if may := int(b.tokens); len(due) > may {
		due, wait = due[:may], every
	}
	b.tokens -= float64(len(due))
	for _, n := range due {
		b.next[n] = now.Add(again)
		b.said[n] = struct{}{}
	}
	if len(b.ended) > int(b.tokens) {
		wait = min(wait, every)
	}
	return due, wait
}

// Failed says that n could not be written: it is tried again, if it stands still.
func (b *Board) Failed(n Notice, now time.Time) { b.Unsaid(n, now.Add(retry)) }

// Unsaid says that n was not written: it is due at that time, if it stands still.
func (b *Board) Unsaid(n Notice, at time.Time) {
	if _, stands := b.next[n]; stands {
		b.next[n] = at
	}
}

// Forget makes everything that stands to be said again: by another leader, say.
func (b *Board) Forget(now time.Time) {
	for n := range b.next {
		b.next[n] = now
	}
}

// Len is how many notices stand, and how many are left out because there are too many.
func (b *Board) Len() (stand, left int) { return b.count, b.left }
