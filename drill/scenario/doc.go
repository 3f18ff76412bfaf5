// Package scenario says what a failover drill is: the scenario that a person
// writes, the closed list of metrics that its assertions may use, the layout of
// addresses and processes that it asks for, and the arrival schedule.
//
// It promises that the same scenario and seed give the same arrivals and the
// same victims, and that a mistake is told with its line, field, value and
// remedy. It starts nothing and connects to nothing.
package scenario
