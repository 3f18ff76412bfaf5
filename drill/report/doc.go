// Package report shows what became of a drill: line by line on a terminal
// ([Printer]), as JSON and as one HTML page that loads nothing.
package report
