// Package kubernetes runs a gateway beside real Kubernetes components: its tests need the
// binary that make test-kubernetes builds from the module in components, and say that
// they were not run where it is not there. Tests whose names begin with TestKubelet have
// nodes of real components too, which make test-kubelet builds.
package kubernetes
