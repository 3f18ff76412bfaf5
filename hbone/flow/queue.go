package flow

// QueueLimit is how much data a session may queue, of most bytes: one chunk, a
// quarter, while small messages pass, so that they have little bulk in front of
// them. They themselves are queued as long as there is space at all. Bulk waits and
// is not starved: whoever takes what is queued gives those that wait their turn
// before anything else is added.
func QueueLimit(most int, interactive bool) int {
	if interactive {
		return most / 4
	}
	return most
}

const (
	// InlineMax is how much the session's reader writes to an application by
	// itself, in bytes. More than that goes to a goroutine, so that one bulk stream
	// does not hold up the others (measurements 2026-11: same CPU, better latency).
	InlineMax = 16 << 10
	// InlineBulk is the same on few processors, for a session without small messages
	// and on a connection of its own: there the hand-over costs a wake-up, and
	// nobody could write while the reader decrypts. (Inside a stream of another
	// session, whose reader wants the processor, it cost a tenth more.)
	InlineBulk = 64 << 10
	// FewCPUs is how many processors are few.
	FewCPUs = 2
)

// Inline is how much the session's reader delivers by itself.
func Inline(fewCPUs, interactive bool) int {
	if fewCPUs && !interactive {
		return InlineBulk
	}
	return InlineMax
}
