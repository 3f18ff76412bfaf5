package nodeproxy

import (
	"errors"
	"fmt"
	"strings"
)

// The model is two TCP connections, the client's and the server's, joined by a
// pipe of bytes:
//
//   - What an end receives is a prefix of what the other end has sent.
//   - One server receives it: a connect may be repeated elsewhere, bytes that may
//     have been delivered not.
//   - An end reads an end only if the other one has ended in order, by a FIN behind
//     all that it was to send, and all of that has come.
//   - Where nobody breaks off and no fault excuses it, both ends read all, and the
//     end behind it. A server that a connect was withdrawn from is reset. An application
//     that takes long to accept, and others that refuse instead, excuse nothing. Nor does
//     anything, where one pod is known to accept, and the retry budget is ample.
//   - Who has ended in order and resets behind that, while a tunnel is open, has ended in order:
//     who reads on, however slowly, reads all, and the end.
//   - All this ends, in bounded time.
//
// It allows either where two TCP connections would: who closes with bytes unread
// resets its connection, so that after leave the other end may read the end, behind
// all bytes, or a reset. The same holds for whom a fault of the network exposes.
func (c *torturedConn) judge() error {
	var wrong []string
	blame := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	served := 0
	for _, e := range c.ends() {
		if !e.done() {
			blame("%s has not ended", e.name)
		}
		if e.wrong != "" {
			blame("%s: %s", e.name, e.wrong)
		}
	}
	for _, s := range c.servers {
		if s.got > 0 {
			served++
		}
		if s.eof && !(c.client.closedInOrder() && s.got == c.client.sent) {
			blame("%s was told an end that is none", s.name)
		}
		if s.got > c.client.sent {
			blame("%s received more than was sent", s.name)
		}
	}
	if served > 1 {
		blame("%d servers have received bytes", served)
	}
	if c.client.eof && !c.endedFor(c.client.got) {
		blame("the client was told an end that is none")
	}
	if c.undisturbed() {
		const broken = "%s was not told the end of a connection that ended in order"
		if !c.client.inOrder() {
			blame(broken, c.client.name)
		}
		whole := 0
		for _, s := range c.servers {
			if s.inOrder() {
				whole++
			} else if s.got > 0 {
				blame(broken, s.name)
			}
		}
		if whole != 1 {
			blame("%d servers were told the end of a connection that ended in order", whole)
		}
	}
	if c.exposed == "" {
		for _, s := range c.servers {
			for _, to := range []struct{ reads, from *end }{{c.client, s}, {s, c.client}} {
				if to.from.endedFirst() && to.reads.readsOn() && !(to.reads.eof && to.reads.got == to.from.sent) {
					blame("%s was not told the end that %s has sent before it broke off", to.reads.name, to.from.name)
				}
			}
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	what := fmt.Sprintf("c%d: %s", c.id, strings.Join(wrong, "; "))
	for _, e := range c.ends() {
		what += fmt.Sprintf("\n\t%v", e)
	}
	if c.exposed != "" {
		what += "\n\texposed by " + c.exposed
	}
	return errors.New(what)
}

// inOrder reports that e has sent all and read an end.
func (e *end) inOrder() bool { return e.eof && e.rerr == nil && e.werr == nil }

// endedFirst reports that e has sent its FIN before it broke off, over a tunnel that was open.
func (e *end) endedFirst() bool { return e.ended && e.broke != "" && e.heard }

// readsOn reports that e has never stopped reading, and has not broken off.
func (e *end) readsOn() bool { return e.broke == "" && e.quit == "" && !e.part && !e.paused }

// closedInOrder reports that the peer of e may read an end.
func (e *end) closedInOrder() bool { return e.ended || e.broke == opLeave }

// endedFor reports that a server has ended in order after n bytes.
func (c *torturedConn) endedFor(n int) bool {
	for _, s := range c.servers {
		if s.closedInOrder() && s.sent == n {
			return true
		}
	}
	return false
}

// acceptsFirst reports that the application that was asked first accepts within every time limit:
// whoever waits for it is answered, so nobody is to fail.
func (c *torturedConn) acceptsFirst() bool {
	if (c.accept.op == opMixed || c.placed) && !c.first.IsValid() {
		return false // it was asked nobody
	}
	how := c.acceptsAt(c.first)
	if c.how.op != "" {
		how = c.how
	}
	return how.op != opRefuse && how.op != opHang && how.op != opSpurns && how.op != opSulks
}

// undisturbed reports that nothing excuses a connection that breaks.
func (c *torturedConn) undisturbed() bool {
	if c.exposed != "" || !c.sure && !c.acceptsFirst() || c.script.quit != "" {
		return false
	}
	return c.client.quit == "" && !c.client.part && !c.script.part
}
