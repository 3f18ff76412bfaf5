package antientropy

import (
	"cmp"
	"maps"
	"slices"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

const (
	// answerTimes is in how many statements a number is answered: two of them may
	// be lost.
	answerTimes = 3
	// maxAnswers is how many numbers one statement answers, its copies included; others
	// wait.
	maxAnswers = 512
	// maxCopies is how many readers of a statement with changes get a copy of their own:
	// it may be large. Beyond them all of it answers all.
	maxCopies = 32
	// maxReaders is how many instances of one network may wait for an answer: twice
	// as many as a ledger holds of it.
	maxReaders = 32
)

// answers are the numbers that readers have drawn and that are to be answered: one
// for each instance, and so many for each network that no network keeps another one
// waiting, however many numbers it draws.
type answers struct {
	readers  map[record.Instance]*answer
	networks map[string]int // network → readers
	turn     uint64
}

type answer struct {
	network string
	number  uint64
	times   int    // in how many statements it was answered
	turn    uint64 // orders the readers by how long they wait
}

func newAnswers() answers {
	return answers{readers: map[record.Instance]*answer{}, networks: map[string]int{}}
}

// take makes number the one to be answered to a reader. It replaces an earlier one
// and keeps its place, if that was not answered yet. False: its network has enough
// readers that wait, and this one must come again.
func (a *answers) take(reader record.Instance, network string, number uint64) bool {
	w := a.readers[reader]
	switch {
	case w != nil && w.number == number:
		return true
	case w == nil && a.networks[network] >= maxReaders:
		return false
	case w == nil:
		w = &answer{network: network}
		a.readers[reader] = w
		a.networks[network]++
	}
	if w.turn == 0 || w.times > 0 {
		a.turn++
		w.turn = a.turn
	}
	w.number, w.times = number, 0
	return true
}

// next returns the numbers for one statement: those that were never answered come
// first, and among them those that wait for longest. Readers that reaches says something
// of get their answer in copies of their own, unless these are more than most.
func (a *answers) next(reaches func(record.Instance) bool, most int) (all []uint64, own map[record.Instance]uint64) {
	due := slices.SortedFunc(maps.Keys(a.readers), func(x, y record.Instance) int {
		one, other := a.readers[x], a.readers[y]
		return cmp.Or(cmp.Compare(one.times, other.times), cmp.Compare(one.turn, other.turn))
	})
	own = map[record.Instance]uint64{}
	for _, reader := range due[:min(len(due), maxAnswers)] {
		w := a.readers[reader]
		if reaches(reader) {
			own[reader] = w.number
		} else {
			all = append(all, w.number)
		}
		if w.times++; w.times >= answerTimes {
			a.forget(reader, w)
		}
	}
	if len(own) > most {
		all = slices.AppendSeq(all, maps.Values(own))
		own = nil
	}
	slices.Sort(all)
	return slices.Compact(all), own
}

func (a *answers) forget(reader record.Instance, w *answer) {
	delete(a.readers, reader)
	if a.networks[w.network]--; a.networks[w.network] == 0 {
		delete(a.networks, w.network)
	}
}
