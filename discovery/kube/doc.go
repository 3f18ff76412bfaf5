// Package kube follows the objects of one Kubernetes cluster and says what of them the
// mesh uses, as records of discovery: pods, services, endpoint slices, nodes, namespaces
// and exports of services.
//
// It promises that what it says depends on the objects alone, not on the order in which
// they came ([Cluster]); that an object that cannot be used is a problem in the words of
// Kubernetes (object, field, value, remedy) and takes nothing else with it; that without
// the API server everything stays as it was, and how long that lasts can be seen
// ([Status]); and that it never writes to the cluster.
//
// It is the only package that knows k8s.io. [Source] runs what touches the world, and
// [Cluster] decides.
package kube
