// Package meshtest runs a mesh inside one test process: a discovery file and a
// development CA in a temporary folder, gateways and node proxies as the real
// commands build them, and applications that do as they are told. Everything is
// real except the process boundary: TCP on loopback addresses that no other
// test uses, mutual TLS, double HBONE, gossip.
//
// It promises that a test ends clean: every process is stopped, and an error of
// Run or a goroutine of ours that is left behind fails the test. When a test
// fails, the log of every process is shown.
//
// Tests that share a process must not run in parallel: the search for leaked
// goroutines cannot tell whose they are.
package meshtest
