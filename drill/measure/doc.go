// Package measure says what became of a drill: what happened in one arm (a
// [Record]), the metrics measured on it, what processes believed and when, and
// the [Result] with its verdict.
//
// It promises that every number comes from what clients, processes and the
// injector saw themselves, and that a drill whose fault did not take effect is
// inconclusive, never held. Package drill/lab records, drill/report shows.
package measure
