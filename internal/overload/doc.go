// Package overload keeps a process that is offered more new work than can be done at
// the rate that it can be done: it bounds how much new work is under way, holds the
// rest back for a moment, and refuses what would wait too long before anything
// was spent on it. It also says how late the process is, so that nobody else is
// blamed for what is late because of us.
//
// A bound is a window like TCP's: it shrinks while work is late, once the work above it
// is gone, and grows otherwise. It is never shrunk below what is done in a given time
// lately. There are two kinds, which differ in what is late:
//
//   - [Limiter], one per process: goroutines that could run wait long for a processor, as
//     the Go scheduler counts them (runtime/metrics, /sched). A peer that is slow makes
//     nobody wait for a processor. What its own clients ask for and what others do is
//     bounded apart: the former waits, and is bounded sooner.
//   - [Destinations], one for each destination of a client: openings of connections, the
//     fastest tenth like the half, take longer than they used to, and less so when fewer
//     are opened at once: there is a queue somewhere on the way. Pods that hang make others wait for nothing.
//
// What has been under way for a second counts no more: a service that hangs, and fills
// the process with connections that wait for it, costs other services nothing.
// [Throttle] keeps clients from asking for much more than a peer accepts of each.
//
// It knows no connection: Refuse may be asked before anything was spent on one, Admit is
// asked before each piece of new work, or TryAdmit by
// who serves others that hold back already, or AdmitOnce for those that ask once and
// never again, and [Work.Done] told when it needs no more than any that is established.
package overload
