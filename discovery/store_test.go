package discovery

import (
	"strconv"
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
	sub := s.Subscribe()
	changed := sub.C()
	other := s.Subscribe()
	defer other.Close()
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
	sub.Close()
	sub.Close()
	s.Swap(&mesh.Snapshot{Revision: 6})
	select {
	case <-changed:
		t.Error("notified after cancel")
	default:
	}
	<-other.C()
}

func TestStoreSharedByReadersAndOneWriter(t *testing.T) {
	var s Store
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			sub := s.Subscribe()
			changed := sub.C()
			defer sub.Close()
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

func changeOf(uid string) Changes {
	c := newChanges()
	c.Workloads[uid] = struct{}{}
	return c
}

func TestSubscribersTakeWhatChangedSinceTheyLastDid(t *testing.T) {
	var s Store
	sub, late := s.Subscribe(), s.Subscribe()
	defer sub.Close()
	defer late.Close()
	s.Publish(&mesh.Snapshot{Revision: 1}, changeOf("a"))
	s.Publish(&mesh.Snapshot{Revision: 2}, changeOf("b"))
	<-sub.C()
	snap, changes := sub.Take()
	if len(changes.Workloads) != 2 || snap.Revision != 2 {
		t.Errorf("took %v of revision %d, want a and b of 2", changes.Workloads, snap.Revision)
	}
	if _, none := sub.Take(); !none.Empty() {
		t.Errorf("took %v twice", none)
	}
	s.Publish(&mesh.Snapshot{Revision: 3}, changeOf("c"))
	if _, one := sub.Take(); len(one.Workloads) != 1 {
		t.Errorf("took %v, want c", one.Workloads)
	}
	if len(changes.Workloads) != 2 {
		t.Error("what was taken has grown since")
	}
	for i := range maxChanges {
		s.Publish(nil, changeOf(strconv.Itoa(i)))
	}
	if _, all := late.Take(); !all.All || all.Len() != 0 {
		t.Errorf("more than %d changes are %d by name, want everything", maxChanges, all.Len())
	}
	s.Swap(nil)
	s.Publish(nil, changeOf("d"))
	if _, all := sub.Take(); !all.All {
		t.Error("a swap is not everything")
	}
}
