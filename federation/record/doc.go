// Package record holds what gateways tell other gateways about a network: the
// network's gateways, the services that it exports, and what each gateway
// instance can deliver of them.
//
// A record belongs to an [Instance], the life of one gateway process, and has
// a [Key] within it. It travels as an [Entry], whose bytes are hashed, signed
// and passed on as they came, so that what a newer version has added survives
// relays that do not know it. A [Set] is all entries of one instance with a
// hash tree over them: its root says in 32 bytes what the instance says, and
// its 256 bucket hashes find what differs.
//
// It promises that whatever decodes is bounded in bytes and that a record that
// cannot be used spoils no other: it is kept, passed on and reported by an
// [*InvalidError]. It is pure, and knows neither keys nor time.
package record
