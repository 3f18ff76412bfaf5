// Package healthpb holds the wire form of package control/health. It is generated and checked in.
package healthpb

//go:generate go run -C ../../../internal/tools/proto . ../../../control/health/healthpb health.proto
