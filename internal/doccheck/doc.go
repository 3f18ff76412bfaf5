// Package doccheck keeps docs/configuration.md and the configuration structs
// the same: every key and every environment variable is in the page, with what
// the struct tags say about it, and the page names nothing that does not exist.
// It does so with docs/observability.md, the metrics and the fields of /state.
// Every file under examples is read by the reader it is meant for.
//
// The tables of both pages are written by
//
//	go test ./internal/doccheck -update
//
// and the text around them by people. A new configuration is one line in the
// list at the top of doccheck_test.go. It exports nothing.
package doccheck
