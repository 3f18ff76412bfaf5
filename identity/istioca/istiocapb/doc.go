// Package istiocapb holds the messages of Istio's certificate protocol:
// generated code, checked in. Only package istioca should need them.
package istiocapb

//go:generate go run -C ../../../internal/tools/proto . ../../../identity/istioca/istiocapb istioca.proto
