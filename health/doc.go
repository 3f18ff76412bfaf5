// Package health turns observations into decisions: what one connection
// attempt says about an endpoint and port, when that endpoint is left out, and
// when it may come back.
//
// Two judges look at the same outcomes. An exponentially weighted moving
// average lowers the weight of whatever fails often; a breaker ejects whatever
// fails several times in a row, lets one probe through after a growing wait,
// and readmits what answers. Either can be turned off. [Tracker] holds both for
// the keys of one observer; [CapExceptions] and [Hints] join that observer's
// own evidence with what others report.
//
// It promises that an outcome counts only for the state that its attempt began
// in: a dial from before an ejection neither lengthens nor ends it. A key in
// its default state costs no memory.
//
// It is pure: time and randomness are arguments, nothing is logged, nothing is
// safe for concurrent use unless it says so. It does not choose an endpoint
// (package balance), nor does it decide what to do if all of them are bad.
package health
