// Package header is what CONNECT requests and responses carry besides their
// pseudo-headers: the names, and the values as text. It promises that whatever a peer
// sends is read without an error: what cannot be understood counts as absent.
package header
