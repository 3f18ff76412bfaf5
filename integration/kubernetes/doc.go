// Package kubernetes runs a gateway beside real Kubernetes components: its tests need the
// binary that make test-kubernetes builds from the module in components, and say that
// they were not run where it is not there.
package kubernetes
