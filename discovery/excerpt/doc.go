// Package excerpt is what one node proxy needs of its own network's discovery: the
// network and its gateways, the pods of its node with the services that those are
// members of, and each service that it follows, with its members.
//
// A gateway keeps an [Index] of who needs what, and each [Reader] of it takes what has
// changed since the last time, as of one snapshot: it keeps names, not values, so a
// reader that is behind takes less, and a change that concerns nobody costs nobody
// anything. A node proxy keeps what it was told in a [Held], which says what to change
// in discovery, and when another gateway leads takes nothing away that this one may only
// not have heard of yet.
//
// Pure: no goroutine, no clock, no file. Nothing here is safe for concurrent use unless it
// says so.
package excerpt
