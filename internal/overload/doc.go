// Package overload keeps a process that is offered more new work than it can do
// at the rate that it can do: it bounds how much new work is under way, holds the
// rest back for a moment, and refuses what would wait too long before anything
// was spent on it. It also says how late the process is, so that nobody else is
// blamed for what is late because of us.
//
// The bound is a window like TCP's: it shrinks while goroutines that could run
// wait long for a processor, as the Go scheduler counts them (runtime/metrics,
// /sched), and grows otherwise. A peer that is slow makes nobody wait for a
// processor, and what has been under way for a second counts no more: a service that
// hangs, and fills the process with connections that wait for it, costs other
// services nothing.
//
// It knows no connection: [Limiter.Admit] is asked before each piece of new work,
// and [Work.Done] told when it needs no more than any that is established.
package overload
