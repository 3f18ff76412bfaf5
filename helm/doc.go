// Package helm holds the chart isthmus and the chart of its custom resources; its tests
// render them. It exports nothing.
package helm
