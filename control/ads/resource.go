package ads

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	pb "github.com/isthmus-mesh/isthmus/control/ads/adspb"
)

const (
	// SourceType is the type of the resource that describes a server.
	SourceType = "type.googleapis.com/isthmus.control.v1.Source"
	// SyncType is the type of barriers.
	SyncType = "type.googleapis.com/isthmus.control.v1.Sync"

	// wildcard is the name that subscribes all resources of a type.
	wildcard = "*"
	// maxName bounds names, aliases and groups, in bytes. The longest names in use are
	// istiod's for split-horizon workloads, with two host names.
	maxName = 1024
)

// Resource is an object of one type. The server keeps Body: do not change it.
type Resource struct {
	Name    string   // unique within the type
	Aliases []string // other names, which clients receive
	Groups  []string // keys that may be subscribed, unknown to clients
	Body    []byte   // the encoded message of the type
	Version string   // hash of the content; ignored by [Server.Apply]
}

// Update changes resources of one type.
type Update struct {
	Type      string
	Resources []Resource // new or changed
	Removed   []string   // names
}

// keys returns the name, aliases and groups of r without duplicates.
func (r Resource) keys() []string {
	keys := slices.Concat([]string{r.Name}, r.Aliases, r.Groups)
	slices.Sort(keys)
	return slices.Compact(keys)
}

// encode returns the wire form of r and its version.
func (r Resource) encode(typeURL string) (encoded []byte, version string, err error) {
	for _, k := range r.keys() {
		if k == "" || k == wildcard || len(k) > maxName {
			return nil, "", fmt.Errorf("resource %.80q of %s: key %.80q: want 1 to %d bytes, and not %s", r.Name, typeURL, k, maxName, wildcard)
		}
	}
	m := &pb.Resource{Name: r.Name, Aliases: slices.Sorted(slices.Values(r.Aliases)), Resource: &anypb.Any{TypeUrl: typeURL, Value: r.Body}}
	encoded, err = proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, "", fmt.Errorf("resource %.80q of %s: %w", r.Name, typeURL, err)
	}
	sum := sha256.Sum256(encoded)
	version = base64.RawURLEncoding.EncodeToString(sum[:12])
	encoded = protowire.AppendTag(encoded, 1, protowire.BytesType) // Resource.version
	return protowire.AppendString(encoded, version), version, nil
}

// decode is the inverse of encode.
func decode(encoded []byte, typeURL string) (Resource, error) {
	var m pb.Resource
	if err := proto.Unmarshal(encoded, &m); err != nil {
		return Resource{}, fmt.Errorf("resource of %s: %w", typeURL, err)
	}
	if got := m.GetResource().GetTypeUrl(); got != typeURL {
		return Resource{Name: m.GetName()}, fmt.Errorf("resource %.80q: type %.80q in a response of type %s", m.GetName(), got, typeURL)
	}
	if m.GetName() == "" {
		return Resource{}, fmt.Errorf("resource of %s without a name", typeURL)
	}
	return Resource{Name: m.GetName(), Aliases: m.GetAliases(), Version: m.GetVersion(), Body: m.GetResource().GetValue()}, nil
}
