package overload

import (
	"runtime/metrics"
	"time"
)

// Of a process that is late, so many goroutines per processor want to run, and waits
// for a processor lately took so long on average; or, as waits are known only when they
// are over, very many want to run.
const (
	manyRunnable = 32
	longWait     = 10 * time.Millisecond
	veryMany     = 256
	// share is how many of those that want to run may belong to one piece of new
	// work: if there are more, it is not new work that makes the process late, and
	// less of it would not help.
	share = 4
)

// scheduling is what the Go scheduler says at one tick.
type scheduling struct {
	processors int
	runnable   int           // goroutines that want to run, now
	wait       time.Duration // mean wait for a processor, lately
}

// late reports whether the process has too little processor time for so many pieces of
// new work.
func (s scheduling) late(underWay int) bool {
	many := s.runnable > manyRunnable*s.processors && s.wait > longWait || s.runnable > veryMany*s.processors
	return many && s.runnable < share*underWay
}

// scheduler reads what the Go scheduler tells of itself.
type scheduler struct {
	samples [2]metrics.Sample
	before  []uint64 // counts of the histogram at the last read
}

func newScheduler() *scheduler {
	s := &scheduler{}
	s.samples[0].Name = "/sched/goroutines/runnable:goroutines"
	s.samples[1].Name = "/sched/latencies:seconds"
	s.read()
	return s
}

// read returns how many goroutines want to run, and the mean of the waits for a
// processor that ended since the last call. A median would say nothing: even under
// overload most waits are those of goroutines that run next because another one
// just woke them. What the runtime does not count is zero.
func (s *scheduler) read() (runnable int, wait time.Duration) {
	metrics.Read(s.samples[:])
	if v := s.samples[0].Value; v.Kind() == metrics.KindUint64 {
		runnable = int(v.Uint64())
	}
	if s.samples[1].Value.Kind() != metrics.KindFloat64Histogram {
		return runnable, 0
	}
	h := s.samples[1].Value.Float64Histogram()
	if len(s.before) != len(h.Counts) {
		s.before = make([]uint64, len(h.Counts))
	}
	var sum, total float64
	for i, n := range h.Counts {
		ended := float64(n - s.before[i])
		total += ended
		sum += ended * max(0, h.Buckets[i]) // the bucket's lower bound
	}
	copy(s.before, h.Counts)
	return runnable, time.Duration(sum / max(1, total) * float64(time.Second))
}
