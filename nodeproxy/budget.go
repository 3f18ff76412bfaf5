package nodeproxy

import "sync"

// budget limits the repeats of one service, so that a service that is down
// everywhere is not also hammered: every new connection earns a share of a
// repeat, up to a burst. Safe for concurrent use.
type budget struct {
	burst, ratio float64

	mu    sync.Mutex
	saved map[string]float64 // service → repeats that may be used; absent: burst
}

func newBudget(r Retry) *budget {
	return &budget{burst: float64(r.BudgetBurst), ratio: r.BudgetRatio, saved: map[string]float64{}}
}

// earn counts one new connection to service.
func (b *budget) earn(service string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s, ok := b.saved[service]; ok {
		if s += b.ratio; s >= b.burst {
			delete(b.saved, service)
		} else {
			b.saved[service] = s
		}
	}
}

// spend takes one repeat if there is one.
func (b *budget) spend(service string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.saved[service]
	if !ok {
		s = b.burst
	}
	if s < 1 {
		return false
	}
	b.saved[service] = s - 1
	return true
}
