// Package wdspb holds the wire form of package control/wds: messages that are field-compatible with
// istio.workload and istio.security, and our extensions of them. It is generated and checked in.
package wdspb

//go:generate go run -C ../../../internal/tools/proto . ../../../control/wds/wdspb workload.proto authorization.proto extension.proto
