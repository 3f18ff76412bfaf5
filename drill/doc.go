// Package drill is where failover drills are: drill/scenario says what a person
// asks for, drill/lab starts the processes and breaks things, drill/demoapp is
// the pods' application, drill/measure makes numbers and a verdict of what was
// seen, and drill/report shows them. It holds no code itself.
package drill
