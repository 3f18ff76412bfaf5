package simnet

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// pipe is one direction: segments that become readable when their time has come.
type pipe struct {
	o Options

	mu        sync.Mutex
	cond      sync.Cond
	segs      []segment
	size      int
	finned    bool
	finAt     time.Time // when the FIN arrives; zero if none was sent
	stalled   bool
	err       error // both ends, at once; each is told once
	told      bool  // the reader has got err
	abandoned bool  // the reader has closed
	rdl, wdl  limit
}

type segment struct {
	b   []byte
	at  time.Time
	end error // io.EOF or ECONNRESET instead of bytes
}

// limit is a deadline; gen tells a timer whether it is still meant.
type limit struct {
	gen     int
	expired bool
	timer   *time.Timer
}

func newPipe(o Options) *pipe {
	p := &pipe{o: o}
	p.cond.L = &p.mu
	return p
}

func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if err := p.readableLocked(); err != nil {
			return 0, err
		}
		if n, err := p.takeLocked(b); err != syscall.EAGAIN {
			return n, err
		}
		p.awaitLocked()
	}
}

// readableLocked returns why there is nothing to be read any more, or not now.
func (p *pipe) readableLocked() error {
	switch {
	case p.abandoned:
		return net.ErrClosed
	case p.rdl.expired:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// takeLocked reads what has arrived; EAGAIN if that is nothing.
func (p *pipe) takeLocked(b []byte) (int, error) {
	switch {
	case p.told:
		return 0, io.EOF
	case p.err != nil:
		p.told = true
		return 0, p.err
	case p.dueLocked() != 0:
		return 0, syscall.EAGAIN
	}
	return p.pop(b)
}

// dueLocked is when the first segment arrives: 0 if it is here, negative if
// there is none.
func (p *pipe) dueLocked() time.Duration {
	if len(p.segs) == 0 || p.stalled {
		return -1
	}
	return max(0, time.Until(p.segs[0].at))
}

// awaitLocked waits until something may have changed.
func (p *pipe) awaitLocked() {
	if due := p.dueLocked(); due > 0 {
		defer time.AfterFunc(due, p.wake).Stop()
	}
	p.cond.Wait()
}

// tryRead is read that does not wait.
func (p *pipe) tryRead(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.abandoned {
		return 0, net.ErrClosed
	}
	return p.takeLocked(b)
}

// readable is tryRead that takes no bytes.
func (p *pipe) readable() (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.abandoned:
		return 0, net.ErrClosed
	case p.told || p.err != nil || p.dueLocked() != 0 || p.segs[0].end == syscall.ECONNRESET:
		n, err = p.takeLocked(nil)
	default:
		for _, s := range p.segs {
			if time.Until(s.at) > 0 {
				break
			}
			n += len(s.b)
		}
	}
	if err == io.EOF {
		err = nil
	}
	return n, err
}

// rawRead calls attempt until it is done, again whenever something may have changed.
func (p *pipe) rawRead(attempt func(uintptr) bool) error {
	for {
		p.mu.Lock()
		err := p.readableLocked()
		p.mu.Unlock()
		if err != nil {
			return err
		}
		if attempt(0) {
			return nil
		}
		p.mu.Lock()
		for p.readableLocked() == nil && p.err == nil && p.dueLocked() != 0 {
			p.awaitLocked()
		}
		p.mu.Unlock()
	}
}

func (p *pipe) wake() {
	p.mu.Lock()
	p.cond.Broadcast()
	p.mu.Unlock()
}

// pop reads what has arrived, across segments.
func (p *pipe) pop(b []byte) (int, error) {
	n := 0
	for len(p.segs) > 0 && time.Until(p.segs[0].at) <= 0 && (n < len(b) || n == 0) {
		s := &p.segs[0]
		if s.end != nil {
			if n > 0 {
				break
			}
			if s.end == io.EOF {
				return 0, io.EOF // stays for the next read
			}
			p.segs, p.err, p.told = nil, s.end, true
			return 0, s.end
		}
		k := copy(b[n:], s.b)
		n += k
		s.b = s.b[k:]
		if len(s.b) > 0 {
			break
		}
		p.segs = p.segs[1:]
	}
	p.size -= n
	p.cond.Broadcast()
	return n, nil
}

// wasReset reports whether a reset has arrived, read or not.
func (p *pipe) wasReset() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return true
	}
	n := len(p.segs)
	return n > 0 && !p.stalled && p.segs[n-1].end == syscall.ECONNRESET && time.Until(p.segs[n-1].at) <= 0
}

// endedFirst reports whether a reset has arrived behind a FIN.
func (p *pipe) endedFirst() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.segs)
	return p.err == nil && n > 1 && p.segs[n-2].end == io.EOF && p.segs[n-1].end == syscall.ECONNRESET
}

// finArrived reports whether the FIN has arrived, read or not.
func (p *pipe) finArrived() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.finAt.IsZero() && !p.stalled && time.Until(p.finAt) <= 0
}

func (p *pipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	total := 0
	for {
		if p.wdl.expired && !p.finned {
			return total, os.ErrDeadlineExceeded
		}
		n, err := p.putLocked(b)
		total, b = total+n, b[n:]
		if err != syscall.EAGAIN {
			return total, err
		}
		p.cond.Wait()
	}
}

// putLocked sends what there is room for; EAGAIN if that is not all.
func (p *pipe) putLocked(b []byte) (int, error) {
	switch {
	case p.finned:
		return 0, net.ErrClosed
	case p.err != nil:
		return 0, p.err
	case p.abandoned:
		return 0, syscall.EPIPE
	}
	n := max(0, min(p.o.Buffer-p.size, len(b)))
	if n > 0 {
		p.segs = append(p.segs, segment{b: append([]byte(nil), b[:n]...), at: time.Now().Add(p.o.Delay)})
		p.size += n
		p.cond.Broadcast()
	}
	if n < len(b) {
		return n, syscall.EAGAIN
	}
	return n, nil
}

// tryWrite is write that does not wait: EAGAIN if there is room for nothing.
func (p *pipe) tryWrite(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.putLocked(b)
	if n > 0 && err == syscall.EAGAIN {
		err = nil
	}
	return n, err
}

func (p *pipe) fin() error { return p.end(io.EOF) }

// reset drops what is in flight: the reader gets what has arrived, and sees
// ECONNRESET behind it.
func (p *pipe) reset() {
	p.mu.Lock()
	for i := range p.segs {
		if p.stalled || time.Until(p.segs[i].at) > 0 {
			p.segs = p.segs[:i]
			break
		}
	}
	p.size = 0
	for _, s := range p.segs {
		p.size += len(s.b)
	}
	p.mu.Unlock()
	p.end(syscall.ECONNRESET)
}

func (p *pipe) end(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finned && err == io.EOF {
		return nil
	}
	p.finned = true
	at := time.Now().Add(p.o.Delay)
	if err == io.EOF {
		p.finAt = at
	}
	p.segs = append(p.segs, segment{at: at, end: err})
	p.cond.Broadcast()
	return nil
}

func (p *pipe) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	p.cond.Broadcast()
}

// abandon is the reader closing. It reports whether bytes were left unread.
func (p *pipe) abandon() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.abandoned = true
	unread := p.size > 0
	p.segs, p.size = nil, 0
	p.cond.Broadcast()
	return unread
}

func (p *pipe) setStalled(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = on
	p.cond.Broadcast()
}

func (p *pipe) setDeadline(l *limit, t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.gen++
	l.expired = false
	if l.timer != nil {
		l.timer.Stop()
	}
	p.cond.Broadcast()
	if t.IsZero() {
		return
	}
	wait := time.Until(t)
	if wait <= 0 {
		// Not by a timer: of those that are due at once, a bubble of synctest runs several at
		// a time in one context of the race detector, which then crashes (go 1.26).
		l.expired = true
		return
	}
	gen := l.gen
	l.timer = time.AfterFunc(wait, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if l.gen == gen {
			l.expired = true
			p.cond.Broadcast()
		}
	})
}
