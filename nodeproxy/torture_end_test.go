package nodeproxy

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// end is an application at one end of a connection. It sends the bytes of its
// pattern, as many as it is told to, and checks each byte that it receives
// against its peer's.
type end struct {
	name    string
	conn    *simnet.Conn
	out, in pattern

	mu     sync.Mutex
	cond   sync.Cond
	script        // what it is to do
	sent   int    // bytes that its socket took
	got    int    // bytes received
	ended  bool   // it has sent its FIN behind all that it was to send
	broke  op     // opReset, opLeave or opPart, once it has
	eof    bool   // it has read its peer's end
	rerr   error  // why it reads no more, if not for eof
	werr   error  // why it sends no more, if not for its own end
	wrong  string // the first byte that was not its peer's
	heard  bool   // it had received something when it has sent its FIN
	active int    // of its two goroutines
}

// script is what an application was told to do so far.
type script struct {
	want   int  // bytes to send, in all
	finish bool // then send a FIN
	pace   int  // of reading: bytes per millisecond, 0 without limit, negative not at all
	paused bool // it has not read at all for a time
	part   bool // behind that FIN, reset
	quit   op   // opReset or opLeave
}

func startEnd(name string, c *simnet.Conn, out, in pattern, s script) *end {
	e := &end{name: name, conn: c, out: out, in: in, script: s, active: 2}
	e.cond.L = &e.mu
	go e.write()
	go e.read()
	if s.quit != "" {
		e.tell(func(*script) {})
	}
	return e
}

// tell changes what e is to do.
func (e *end) tell(change func(*script)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.script)
	if e.quit != "" && e.broke == "" && e.active > 0 {
		e.broke = e.quit
		if e.quit == opReset {
			e.conn.SetLinger(0)
		}
		e.conn.Close()
	}
	e.cond.Broadcast()
}

func (e *end) done() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.active == 0
}

// stopped is called with mu held when one of the goroutines ends; the last one
// closes the connection.
func (e *end) stopped() {
	if e.active--; e.active == 0 {
		e.conn.Close()
	}
	e.mu.Unlock()
}

func (e *end) write() {
	e.mu.Lock()
	defer e.stopped()
	buf := make([]byte, 32<<10)
	for e.broke == "" && e.rerr == nil {
		switch n := min(e.want-e.sent, len(buf)); {
		case n > 0:
			e.out.fill(buf[:n], e.sent)
			e.mu.Unlock()
			k, err := e.conn.Write(buf[:n])
			e.mu.Lock()
			e.sent += k
			if err != nil {
				e.werr = err
				return
			}
		case e.finish:
			e.conn.CloseWrite()
			e.ended, e.heard = true, e.got > 0
			if e.part {
				e.broke = opPart
				e.conn.SetLinger(0)
				e.conn.Close()
				e.cond.Broadcast()
			}
			return
		default:
			e.cond.Wait()
		}
	}
}

func (e *end) read() {
	e.mu.Lock()
	defer e.stopped()
	buf := make([]byte, 32<<10)
	for e.broke == "" {
		if e.pace < 0 {
			e.cond.Wait()
			continue
		}
		size := len(buf)
		if e.pace > 0 {
			size = min(size, e.pace)
		}
		slow := e.pace > 0
		e.mu.Unlock()
		n, err := e.conn.Read(buf[:size])
		if slow {
			time.Sleep(time.Millisecond)
		}
		e.mu.Lock()
		if wrong := e.in.check(buf[:n], e.got); wrong != "" && e.wrong == "" {
			e.wrong = wrong
		}
		e.got += n
		if err == io.EOF {
			e.eof = true
			return
		}
		if err != nil {
			if e.rerr = err; e.broke == "" {
				e.conn.Close() // frees the writer
			}
			e.finish = true
			e.cond.Broadcast()
			return
		}
	}
}

func (e *end) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	text := fmt.Sprintf("%s sent %d of %d", e.name, e.sent, e.want)
	if e.ended {
		text += " and its end"
	}
	if e.broke != "" {
		text += fmt.Sprintf(", broke off (%s)", e.broke)
	}
	text += fmt.Sprintf("; received %d", e.got)
	switch {
	case e.eof:
		text += " and an end"
	case e.rerr != nil:
		text += fmt.Sprintf(" and %v", e.rerr)
	}
	if e.werr != nil {
		text += fmt.Sprintf("; its write failed: %v", e.werr)
	}
	if e.active > 0 {
		text += fmt.Sprintf("; still at work (%d)", e.active)
	}
	return text
}

// pattern is what one end of a connection sends: bytes of a common noise from
// an offset of its own on, so that no byte can pass for another one's.
type pattern int

const noisePeriod = 65_521 // prime: no chunk size divides it

var noise = sync.OnceValue(func() []byte {
	rng := rand.NewChaCha8([32]byte{1})
	b := make([]byte, noisePeriod)
	rng.Read(b)
	return append(b, b...)
})

func patternOf(conn int, s side) pattern {
	p := conn * 2
	if s == server {
		p++
	}
	return pattern(p * 1009 % noisePeriod)
}

func (p pattern) fill(b []byte, at int) {
	for len(b) > 0 {
		n := copy(b, noise()[(int(p)+at)%noisePeriod:])
		b, at = b[n:], at+n
	}
}

// check compares b with what p has at offset at.
func (p pattern) check(b []byte, at int) (wrong string) {
	for len(b) > 0 {
		want := noise()[(int(p)+at)%noisePeriod:]
		want = want[:min(len(want), len(b))]
		if got := b[:len(want)]; !bytes.Equal(got, want) {
			i := 0
			for got[i] == want[i] {
				i++
			}
			return fmt.Sprintf("byte %d is not what was sent there", at+i)
		}
		b, at = b[len(want):], at+len(want)
	}
	return ""
}
