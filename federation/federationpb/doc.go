// Package federationpb holds the wire form of federation records: generated
// code, checked in. Packages federation and federation/record convert to and from it; nothing else
// should need these types but the transports, federation/gossip and federation/healthstream.
package federationpb

//go:generate go run -C ../../internal/tools/proto . ../../../federation/federationpb records.proto stream.proto
