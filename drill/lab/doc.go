// Package lab runs drills: it starts the real processes of a scenario on
// loopback addresses, drives clients against them, breaks things at known
// instants, and returns what was seen as a drill.Result.
//
// It promises that nothing is left running on any way out (every child is in
// its own process group, dies with this process, and is waited for), that
// nothing outside the output folder is written, and that a fault is believed
// only after a probe of its own has seen the effect.
//
// It judges nothing: that is drill/measure. It runs on Linux alone.
package lab
