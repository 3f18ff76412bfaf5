package healthstream

import (
	"fmt"
	"sync"
	"testing"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

// versions is a source in which each service has one share, whose word changes with n.
type versions struct {
	mu sync.Mutex
	n  uint64
}

func (v *versions) Shares(service string) []Share {
	v.mu.Lock()
	defer v.mu.Unlock()
	e := record.Entry{Key: record.EncodeKey(record.Key{Kind: record.KindHealth, Service: service, Port: 80}), Sequence: v.n + 1, Body: make([]byte, 4<<10)}
	return []Share{{Network: "east", Instances: []Voice{{Instance: record.Instance{1}, Gateway: "gw-1", Live: true, Entries: []record.Entry{e}}}}}
}

// A stream that takes nothing holds one message and the names of what is due: however
// often everything changes meanwhile, it is sent the latest of each once.
func TestAStreamThatTakesNothingHoldsOneMessage(t *testing.T) {
	source := &versions{}
	x := newTopics(source)
	d := newDownlink(x, 100)
	defer d.close()
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("svc-%d.default.svc.cluster.local", i))
	}
	d.subscribe(names, nil)
	began, release := make(chan struct{}), make(chan struct{})
	largest, total, messages := 0, 0, 0
	done := make(chan error)
	go func() {
		done <- d.drain(func(body []byte) error {
			if messages++; messages == 1 {
				close(began)
				<-release
			}
			largest, total = max(largest, len(body)), total+len(body)
			return nil
		})
	}()
	<-began
	for range 50 {
		source.mu.Lock()
		source.n++
		source.mu.Unlock()
		x.changedAll()
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	state := 100 * 4 << 10
	if largest > chunkBytes+16<<10 || total > 3*state {
		t.Errorf("%d messages of at most %d bytes and %d in all, for a state of %d that changed 50 times; want at most %d, and what it is once and what it was in part", messages, largest, total, state, chunkBytes+16<<10)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.due) != 0 {
		t.Errorf("%d services are still due", len(d.due))
	}
}
