package hbone

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/net/http2"
)

// read takes in what the peer sends until the session ends. It runs in the one
// reading goroutine.
func (s *Session) read() {
	defer close(s.life.readDone)
	err := s.readAll()
	s.recv.batch.deliverAll()
	s.onTransportEOF(err)
	select {
	case <-s.life.done: // ended from elsewhere; err is only the closed transport
	default:
		s.fail(s.readError(err))
	}
	var pe *ProtocolError
	if errors.As(s.Err(), &pe) {
		s.linger()
	}
}

// lingerTime is how long a session goes on reading, and throwing away, after it
// has told its peer about a fault: closing a TCP connection with unread bytes
// resets it, and the GOAWAY would be lost.
const lingerTime = 500 * time.Millisecond

func (s *Session) linger() {
	buf := readBufs.Get().(*readBuf)
	defer readBufs.Put(buf)
	for {
		if _, err := s.t.Read(buf[:]); err != nil {
			return
		}
	}
}

func (s *Session) readError(err error) error {
	var pe *ProtocolError
	if errors.As(err, &pe) {
		return err
	}
	s.mu.Lock()
	goAway, open := s.life.goAway, len(s.streams)
	s.mu.Unlock()
	switch {
	case goAway != nil && goAway.Code != http2.ErrCodeNo:
		return goAway
	case (errors.Is(err, io.EOF) || err == errCut) && open == 0 && goAway == nil:
		return ErrPeerClosed // nobody was cut off
	case (errors.Is(err, io.EOF) || err == errCut) && open == 0:
		return ErrSessionClosed // the peer left in order
	case (errors.Is(err, io.EOF) || err == errCut) && goAway != nil:
		return goAway
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("hbone: read from %v: %w", s.t.RemoteAddr(), err)
}

func (s *Session) readAll() error {
	g, _ := s.t.(gatherer)
	for {
		if g != nil {
			g.await()
		}
		if err := s.readBatches(g); err != nil {
			return err
		}
	}
}

// readBatches reads until nothing more is at hand, and holds its buffer only
// that long.
func (s *Session) readBatches(g gatherer) error {
	buf := readBufs.Get().(*readBuf)
	defer readBufs.Put(buf)
	for {
		n, err := s.t.Read(buf[:])
		if n > 0 {
			s.received()
			if err := s.recv.frames.parse(buf[:n]); err != nil {
				return err
			}
		}
		more := g != nil && err == nil && g.buffered()
		s.recv.batch.deliver(more)
		if debugChecks {
			s.mustHold("after a batch was read")
		}
		if err != nil {
			return err
		}
		if g != nil && !more {
			return nil
		}
	}
}

// batch collects what one batch brought, so that the application learns of it
// only after the whole batch is parsed: an END_STREAM whose RST_STREAM is right
// behind it must not provoke an answer (the stock client ends every tunnel so).
type batch struct {
	touched []*Stream
	ended   []*Stream // END_STREAM seen in this batch
	held    []*Stream // END_STREAM seen in the batch before
}

// deliver wakes the readers of what arrived. With more at hand the ends of this
// batch wait for the next one, and not longer: a peer that never pauses must
// not hold them up.
func (b *batch) deliver(more bool) {
	for _, st := range b.touched {
		st.touched = false
		st.recv.notify()
	}
	clear(b.touched)
	b.touched = b.touched[:0]
	if len(b.held) == 0 && len(b.ended) == 0 {
		return
	}
	release(&b.held)
	if more {
		b.held, b.ended = b.ended, b.held
		return
	}
	release(&b.ended)
}

func (b *batch) deliverAll() {
	b.deliver(false)
}

func release(ended *[]*Stream) {
	for _, st := range *ended {
		st.recv.end()
	}
	clear(*ended)
	*ended = (*ended)[:0]
}
