package antientropy

import (
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// Processes of a gateway end one after the other, more of them than are kept of a network:
// each new one is believed within seconds, by those who reach it through others too, and
// minutes later nobody holds what has ended. Those that live are never lost meanwhile.
func TestInstancesThatHaveEndedAreForgottenByAll(t *testing.T) {
	w := newWorld(t, "dead", 2, 3)
	again, far := w.sites[2], w.sites[5]
	w.block(again, far)
	dead := map[record.Instance]bool{}
	start := func(s *site) {
		w.start(s)
		s.node.Publisher().Synchronise()
	}
	for _, s := range w.sites {
		start(s)
	}
	w.run(10 * time.Second)
	for n := range w.limits.Instances + 4 {
		dead[again.key.ID()] = true
		start(again)
		w.publish(again, export(n))
		w.run(6 * time.Second)
		if err := w.agree(); err != nil {
			t.Fatalf("restart %d: %v", n, err)
		}
	}
	dead[again.key.ID()], again.node = true, nil // and one is stopped for good
	for range 180 {
		w.run(time.Second)
		if err := w.agree(); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range w.sites {
		if s.node == nil {
			continue
		}
		for _, st := range s.node.Ledger().Status() {
			if dead[st.Instance] {
				t.Errorf("%s still holds an instance that ended at least 3 minutes ago: %v, heard %v ago", s.name, st.Phase, w.now.Sub(st.Heard))
			}
		}
	}
	start(again)
	w.run(5 * time.Second)
	if err := w.agree(); err != nil {
		t.Error(err)
	}
}

// Whoever nobody has reached since is not taught to a reader that has just started: it
// would hold it as pending, and teach others. Those that hold it keep what it exports.
func TestALapsedInstanceIsNotTaughtToOthers(t *testing.T) {
	w := newWorld(t, "lapsed", 3, 1)
	gone, holder, late := w.sites[0], w.sites[1], w.sites[2]
	w.start(gone)
	w.start(holder)
	w.publish(gone, export(1))
	w.run(10 * time.Second)
	gone.node = nil
	w.run(2 * ledger.Lapse)
	w.start(late)
	w.run(30 * time.Second)
	if st, ok := late.status(gone.key.ID()); ok {
		t.Errorf("a reader that has just started holds it: %v", st.Phase)
	}
	if st, _ := holder.status(gone.key.ID()); st.Phase != ledger.Lapsed {
		t.Errorf("who has heard it holds it as %v, want lapsed", st.Phase)
	}
}
