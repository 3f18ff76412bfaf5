package discovery

import (
	"sync"
	"testing"

	"github.com/isthmus-mesh/isthmus/mesh"
)

func TestStoreIsNeverEmptyHanded(t *testing.T) {
	var s Store
	if s.Current() == nil || len(s.Current().Workloads()) != 0 || s.Current().Service("x") != nil {
		t.Error("the zero Store does not hold an empty mesh")
	}
	s.Swap(nil)
	if s.Current() == nil {
		t.Error("Current is nil after Swap(nil)")
	}
}

func TestSubscribersHearOfManyChangesOnce(t *testing.T) {
	var s Store
	changed, cancel := s.Subscribe()
	other, cancelOther := s.Subscribe()
	defer cancelOther()
	for i := range uint64(5) {
		s.Swap(&mesh.Snapshot{Revision: i + 1})
	}
	<-changed
	select {
	case <-changed:
		t.Error("a second notification for changes that came before the first was read")
	default:
	}
	if got := s.Current().Revision; got != 5 {
		t.Errorf("revision %d after the notification, want 5", got)
	}
	cancel()
	cancel()
	s.Swap(&mesh.Snapshot{Revision: 6})
	select {
	case <-changed:
		t.Error("notified after cancel")
	default:
	}
	<-other
}

func TestStoreSharedByReadersAndOneWriter(t *testing.T) {
	var s Store
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			changed, cancel := s.Subscribe()
			defer cancel()
			last := s.Current().Revision
			for last < 100 {
				<-changed
				now := s.Current().Revision
				if now < last {
					t.Errorf("revision went from %d back to %d", last, now)
				}
				last = now
			}
		})
	}
	stop := make(chan struct{})
	writer := sync.WaitGroup{}
	writer.Go(func() {
		for i := uint64(1); ; i++ {
			select {
			case <-stop:
				return
			default:
				s.Swap(&mesh.Snapshot{Revision: i})
			}
		}
	})
	wg.Wait()
	close(stop)
	writer.Wait()
}
