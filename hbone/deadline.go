package hbone

import (
	"sync"
	"time"
)

// deadline wakes a condition when it passes. It is guarded by the condition's
// lock. The zero value never passes.
type deadline struct {
	timer   *time.Timer
	armed   bool
	expired bool
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.armed = false
}

func (d *deadline) set(t time.Time, cond *sync.Cond) {
	d.stop()
	d.expired = false
	if t.IsZero() {
		return
	}
	d.armed = true
	wait := time.Until(t)
	if wait <= 0 {
		d.expired = true
		cond.Broadcast()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		cond.L.Lock()
		defer cond.L.Unlock()
		if d.timer == timer { // not replaced meanwhile
			d.expired = true
			cond.Broadcast()
		}
	})
	d.timer = timer
}
