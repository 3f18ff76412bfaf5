// Package drill says what a failover drill is and what became of it: the
// scenario that a person writes, the layout of addresses and processes that it
// asks for, the arrival schedule, what happened (a [Record]), the closed list
// of metrics that assertions may use, and the result as JSON and as one HTML
// page.
//
// It promises that the same scenario and seed give the same arrivals and the
// same victims, that every number comes from what clients, processes and the
// injector saw themselves, and that a drill whose fault did not take effect is
// inconclusive, never held.
//
// It starts nothing and connects to nothing: that is package drill/lab. The
// pods' application is drill/demoapp.
package drill
