// Package federation holds the words in which processes speak of health: what a
// witness says of one endpoint, and what comes of a service on one network.
//
// What gateways tell each other is in package federation/record, what is believed
// of it in federation/ledger; federation/gossip and federation/healthstream carry
// it. It is pure.
package federation
