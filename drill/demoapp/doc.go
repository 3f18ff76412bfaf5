// Package demoapp is the small application that drills and walk-throughs run
// in the place of a pod: it says who it is over plain TCP lines and over HTTP,
// and it can be told to fall ill in one port at a time.
//
// It promises that a fault begins at a known instant and touches nothing else:
// refusing a port resets no connection that was already made, the other ports
// stay as they were, and healing takes effect before the control answers.
//
// It is a test part: no TLS, no authentication, no limit on what a client may
// ask of it.
package demoapp
