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
	stalled   bool
	err       error // both ends, at once
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
		switch {
		case p.abandoned:
			return 0, net.ErrClosed
		case p.rdl.expired:
			return 0, os.ErrDeadlineExceeded
		case p.err != nil:
			return 0, p.err
		}
		if len(p.segs) > 0 && !p.stalled {
			wait := time.Until(p.segs[0].at)
			if wait <= 0 {
				return p.pop(b)
			}
			time.AfterFunc(wait, p.wake)
		}
		p.cond.Wait()
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
			return 0, s.end // stays for the next read
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

func (p *pipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	total := 0
	for {
		switch {
		case p.finned:
			return total, net.ErrClosed
		case p.wdl.expired:
			return total, os.ErrDeadlineExceeded
		case p.err != nil:
			return total, p.err
		case p.abandoned:
			return total, syscall.EPIPE
		case len(b) == 0:
			return total, nil
		}
		if room := p.o.Buffer - p.size; room > 0 {
			n := min(room, len(b))
			p.segs = append(p.segs, segment{b: append([]byte(nil), b[:n]...), at: time.Now().Add(p.o.Delay)})
			p.size += n
			total, b = total+n, b[n:]
			p.cond.Broadcast()
			continue
		}
		p.cond.Wait()
	}
}

func (p *pipe) fin() error { return p.end(io.EOF) }

// reset drops what is in flight: the reader sees ECONNRESET.
func (p *pipe) reset() {
	p.mu.Lock()
	p.segs, p.size = nil, 0
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
	p.segs = append(p.segs, segment{at: time.Now().Add(p.o.Delay), end: err})
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
	gen := l.gen
	l.timer = time.AfterFunc(time.Until(t), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if l.gen == gen {
			l.expired = true
			p.cond.Broadcast()
		}
	})
}
