// Package ledger holds what a gateway believes of the instances of all
// networks, and merges it.
//
// An instance is believed while its statements are signed by a key that its
// network certifies, answer a number that this reader drew within a minute
// ([Fresh]), and name the root of exactly what the ledger holds of it. One that
// falls silent beside a live sibling is ignored after [Silence]; when all of a
// group are silent their last health counts for [Lapse] and is then unknown,
// which callers treat as usable. Exports end by withdrawal or unlink, and when
// their last instance is forgotten: after its certificate, or after [Absence]
// beside another group of its network. No clock of a sender orders anything.
//
// It promises that what one network sends costs bounded memory, and that
// nothing is believed of a network but what its instances have signed. Expiry
// is an event: whoever derives something from the ledger calls [Ledger.Advance]
// at [Ledger.Next] and derives again what it names.
//
// It is pure: time and randomness are arguments. Not safe for concurrent use.
package ledger
