// Package h2conform is a table of what RFC 9113 demands of an endpoint whose
// peer breaks a rule, as far as it concerns tunnels made by CONNECT, and runs
// it against servers and clients: hbone's own sessions, and whole processes.
//
// Each row names the section, what is sent, and what must come of it: a
// connection error or a stream error with its code, an answer, or nothing. After
// everything but a connection error a sibling on the same connection and a new
// stream must work. Where we demand less than the RFC, or something else that it
// allows, the row says why.
//
// The rows speak frames: they know nothing of the implementation.
package h2conform
