package kube

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/internal/tempfile"
	"github.com/isthmus-mesh/isthmus/policy"
)

const (
	// cacheFormat is what a file says that it is; another number is another format.
	cacheFormat = "isthmus kubernetes cache 2"
	// maxCache bounds what is read of a file, unpacked: 200 000 pods with what belongs to them
	// are 150 MiB.
	maxCache = 512 << 20
	// maxCacheLine bounds one object in it: the API server takes 1.5 MiB.
	maxCacheLine = 4 << 20
)

// cacheHeader is the first line of a cache.
type cacheHeader struct {
	Format  string    `json:"format"`
	Network string    `json:"network"`
	Cluster string    `json:"cluster,omitempty"` // UID of the namespace kube-system; empty if that is not known
	Saved   time.Time `json:"saved"`             // when all of it was current
	Written time.Time `json:"written,omitzero"`  // when the file was written
	Policed bool      `json:"policed,omitzero"`  // all policies are in it
}

// cacheLine is each further one; the last has End.
type cacheLine struct {
	Kind      string          `json:"kind,omitempty"`
	Namespace string          `json:"namespace,omitempty"`
	Name      string          `json:"name,omitempty"`
	Object    json.RawMessage `json:"object,omitempty"`
	Revision  uint64          `json:"revision,omitempty"` // of a policy: its metadata.resourceVersion
	Missing   *cacheMissing   `json:"missing,omitempty"`
	End       int             `json:"end,omitempty"` // how many objects there were, and one more
}

// cacheMissing says of an object that the latest list of the API server lacked it. It has how long
// and not since when: a clock that goes backwards between two processes takes nothing of it away.
type cacheMissing struct {
	MS       int64 `json:"ms"`                 // for how long, when the file was written
	Restored bool  `json:"restored,omitempty"` // the API server had gone backwards
}

// writeCache writes objects to the file at path in one step, gzipped JSON lines. missing has some of
// them, by the event without its object.
func writeCache(path string, h cacheHeader, objects []Event, missing map[Event]cacheMissing) (err error) {
	h.Format = cacheFormat
	f, err := tempfile.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	buffer := bufio.NewWriterSize(f, 64<<10)
	packed, _ := gzip.NewWriterLevel(buffer, gzip.BestSpeed)
	to := json.NewEncoder(packed)
	to.SetEscapeHTML(false)
	if err := to.Encode(h); err != nil {
		return err
	}
	for _, e := range objects {
		l := cacheLine{Kind: e.Kind.String(), Namespace: e.Namespace, Name: e.Name}
		if m, is := missing[Event{Kind: e.Kind, Namespace: e.Namespace, Name: e.Name}]; is {
			l.Missing = &m
		}
		o := e.Object
		if p, is := o.(*keptPod); is {
			o = p.object()
		}
		if p, is := o.(*keptPolicy); is {
			l.Object, l.Revision = json.RawMessage(p.text), p.revision
		} else if l.Object, err = json.Marshal(o); err != nil {
			return err
		}
		if err := to.Encode(l); err != nil {
			return err
		}
	}
	if err := errors.Join(to.Encode(cacheLine{End: len(objects) + 1}), packed.Close(), buffer.Flush(), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// readCache reads the file at path. One that is damaged or not whole has an error, and
// nothing of it counts.
func readCache(path string) (cacheHeader, []Event, map[Event]cacheMissing, error) {
	f, err := os.Open(path)
	if err != nil {
		return cacheHeader{}, nil, nil, err
	}
	defer f.Close()
	return decodeCache(f)
}

func decodeCache(r io.Reader) (h cacheHeader, objects []Event, missing map[Event]cacheMissing, err error) {
	missing = map[Event]cacheMissing{}
	packed, err := gzip.NewReader(bufio.NewReaderSize(r, 64<<10))
	if err != nil {
		return h, nil, nil, fmt.Errorf("it is no cache: %w", err)
	}
	lines := bufio.NewScanner(io.LimitReader(packed, maxCache))
	lines.Buffer(make([]byte, 0, 64<<10), maxCacheLine)
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &h) != nil || h.Format != cacheFormat {
		return h, nil, nil, fmt.Errorf("it is no cache of this format: %q", h.Format)
	}
	for lines.Scan() {
		var l cacheLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return h, nil, nil, fmt.Errorf("line %d: %w", len(objects)+2, err)
		}
		if l.End > 0 {
			if l.End != len(objects)+1 {
				return h, nil, nil, fmt.Errorf("it has %d objects, want %d", len(objects), l.End-1)
			}
			if lines.Scan() || lines.Err() != nil { // the sum at the end is read, and right
				return h, nil, nil, fmt.Errorf("it goes on behind its end: %w", lines.Err())
			}
			return h, objects, missing, nil
		}
		e, err := l.event()
		if err != nil {
			return h, nil, nil, fmt.Errorf("line %d: %w", len(objects)+2, err)
		}
		objects = append(objects, e)
		if l.Missing != nil {
			missing[Event{Kind: e.Kind, Namespace: e.Namespace, Name: e.Name}] = *l.Missing
		}
	}
	return h, nil, nil, errors.Join(errors.New("it is not whole"), lines.Err())
}

// event returns the object of a line.
func (l cacheLine) event() (e Event, err error) {
	if l.Missing != nil && l.Missing.MS < 0 {
		return e, fmt.Errorf("missing.ms %d is less than 0", l.Missing.MS)
	}
	e = Event{Kind: kinds, Namespace: l.Namespace, Name: l.Name}
	for k := range kinds {
		if k.String() == l.Kind {
			e.Kind = k
		}
	}
	switch e.Kind {
	case Namespaces:
		e.Object = &corev1.Namespace{}
	case Nodes:
		e.Object = &corev1.Node{}
	case Services:
		e.Object = &corev1.Service{}
	case EndpointSlices:
		e.Object = &discoveryv1.EndpointSlice{}
	case Pods:
		e.Object = &corev1.Pod{}
	case ServiceExports:
		if len(l.Object) <= len("{}") { // written by a version that kept no age
			e.Object = exportIn(Event{ServiceExports, l.Namespace, l.Name, struct{}{}})
			return e, nil
		}
		e.Object = &metav1.PartialObjectMetadata{}
	case AuthorizationPolicies, PeerAuthentications:
		tree, err := policy.Read(string(l.Object))
		if err != nil {
			return e, err
		}
		p := keepPolicy(e.Kind, e.Namespace, e.Name, tree)
		if p.text != policy.Write(tree) {
			return e, fmt.Errorf("%s %s/%s is something else: %.80q", l.Kind, l.Namespace, l.Name, l.Object)
		}
		p.revision = l.Revision
		e.Object = p
		return e, nil
	default:
		return e, fmt.Errorf("kind %q is unknown", l.Kind)
	}
	if err := json.Unmarshal(l.Object, e.Object); err != nil {
		return e, err
	}
	if p, is := e.Object.(*corev1.Pod); is {
		e.Object = keepPod(p)
	}
	return e, l.calls(e.Object)
}

// calls reports, as an error, that o calls itself something else than l does: a record of discovery
// is made of what an object says of itself.
func (l cacheLine) calls(o any) error {
	m, err := meta.Accessor(o)
	if err == nil && (m.GetName() != l.Name || m.GetNamespace() != l.Namespace) {
		err = fmt.Errorf("%s %s/%s calls itself %s/%s", l.Kind, l.Namespace, l.Name, m.GetNamespace(), m.GetName())
	}
	return err
}
