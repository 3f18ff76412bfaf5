// Package adspb holds the messages of delta discovery: generated code, checked
// in. Only package ads needs them.
package adspb

//go:generate go run -C ../../../internal/tools/proto . ../../../control/ads/adspb ads.proto
