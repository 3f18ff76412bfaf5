package antientropy

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// Gateways that cannot reach each other hear of an edge from others, at once.
func TestEdgesReachWhoeverTheirOriginCannotReach(t *testing.T) {
	w := newWorld(t, "blocked", 3, 2)
	origin, far := w.sites[0], w.sites[5]
	w.block(origin, far)
	for _, s := range w.sites {
		w.start(s)
	}
	w.run(8 * time.Second)
	w.publish(origin, healthy(0, 10))
	w.run(3 * time.Second)
	for n := range 10 {
		w.publish(origin, healthy(0, uint32(n)))
		w.run(150 * time.Millisecond) // two hops of 40 ms, and what waits together
		if h, ok := far.node.Ledger().Health(origin.network, serviceName(0), 80); !ok || h.Healthy != uint32(n) {
			t.Fatalf("edge %d: got %+v, %v", n, h, ok)
		}
		w.run(time.Second)
	}
}

// With nobody to pass it on, an edge that is lost is sent again before the next
// heartbeat would tell that it is missing.
func TestALostEdgeIsSentAgain(t *testing.T) {
	w := newWorld(t, "lost", 2, 1)
	for _, s := range w.sites {
		w.start(s)
	}
	w.run(5 * time.Second)
	origin, reader := w.sites[0], w.sites[1]
	for n := range 10 {
		lost := 0
		w.drop = func(to string, message []byte) bool {
			var m pb.Message
			if to != reader.name || proto.Unmarshal(message, &m) != nil || m.GetStatement() == nil {
				return false
			}
			lost++
			return lost <= 2
		}
		w.publish(origin, healthy(0, uint32(n)))
		w.run(800 * time.Millisecond)
		if h, ok := reader.node.Ledger().Health(origin.network, serviceName(0), 80); !ok || h.Healthy != uint32(n) {
			t.Fatalf("edge %d, lost twice: got %+v, %v after 800 ms", n, h, ok)
		}
		w.run(370 * time.Millisecond)
	}
}

// What an instance said last is completed from others when it is gone.
func TestWhatTheDeadSaidIsCompletedByOthers(t *testing.T) {
	w := newWorld(t, "dead", 3, 1)
	origin, reader := w.sites[0], w.sites[2]
	for _, s := range w.sites {
		w.start(s)
	}
	w.run(5 * time.Second)
	id := origin.key.ID()
	wants := 0
	w.drop = func(to string, message []byte) bool {
		var m pb.Message
		if proto.Unmarshal(message, &m) != nil || m.GetWant() == nil || record.Instance(m.GetWant().GetInstance()) != id || to == reader.name {
			return false
		}
		wants++
		return wants <= 2
	}
	for n := range 2000 { // more than a statement carries
		if err := origin.node.Publisher().Put(export(n), origin.time(w)); err != nil {
			t.Fatal(err)
		}
	}
	w.tick(origin)
	w.run(300 * time.Millisecond)
	held, _ := w.sites[1].status(id)
	w.run(1500 * time.Millisecond)
	origin.node = nil
	w.run(5 * time.Second)
	for _, s := range w.sites[1:] {
		if st, _ := s.status(id); !st.Complete || st.Records != 2000 {
			t.Errorf("%s: complete %v, %d records of 2000 (%d when its origin lived); %d questions", s.name, st.Complete, st.Records, held.Records, wants)
		}
	}
}

// A hand-over: two instances of one network side by side for 30 s. Neither
// suppresses the other, and nothing is sent anew for it.
func TestTwoInstancesOfOneGatewayLiveSideBySide(t *testing.T) {
	w := newWorld(t, "hand-over", 2, 2) // gw-0 and gw-1 play the old and the new process
	for _, s := range w.sites {
		w.start(s)
		for n := range 50 {
			if err := s.node.Publisher().Put(export(n), s.time(w)); err != nil {
				t.Fatal(err)
			}
		}
		s.node.Publisher().Synchronise()
		w.tick(s)
	}
	w.run(10 * time.Second)
	w.publish(w.sites[0], record.NetworkRecord(record.Network{Gateway: "gw-0", Draining: true}))
	w.run(time.Second)
	chunks := 0
	w.record = func(_ string, b []byte) {
		var m pb.Message
		if proto.Unmarshal(b, &m) == nil && m.GetChunk() != nil {
			chunks++
		}
	}
	for range 30 {
		w.run(time.Second)
		if err := w.agree(); err != nil {
			t.Fatal(err)
		}
	}
	if chunks > 0 {
		t.Errorf("%d chunks were sent though nothing changed", chunks)
	}
	old := w.sites[0].key.ID()
	w.sites[0].node = nil
	w.run(9 * time.Second)
	if st, ok := w.sites[2].status(old); ok && st.Phase != ledger.Ignored {
		t.Errorf("the old process has ended 9 s ago and is %v", st.Phase)
	}
	if n := len(w.sites[2].node.Ledger().Services(w.sites[0].network)); n != 50 {
		t.Errorf("%d services, want 50", n)
	}
}

// An instance is believed as long as its network certifies it anew: also by a
// reader that missed the new certificate.
func TestCertificatesAreRenewedAndEnd(t *testing.T) {
	w := newWorld(t, "renewal", 3, 1)
	w.lifetime = time.Minute // and five of tolerance
	renewed, ended, reader := w.sites[0], w.sites[1], w.sites[2]
	w.start(renewed)
	w.start(ended)
	w.lifetime = networkkey.MaxLifetime
	w.start(reader)
	w.run(30 * time.Second)
	if err := w.keys[renewed.network].Certify(renewed.key, renewed.network, "gw", w.now, networkkey.MaxLifetime); err != nil {
		t.Fatal(err)
	}
	renewed.node.Publisher().Certified(w.now)
	w.drop = func(to string, _ []byte) bool { return to != renewed.name }
	w.run(introduced + time.Second)
	w.drop = func(string, []byte) bool { return false }
	w.run(7 * time.Minute)
	if st, _ := reader.status(renewed.key.ID()); st.Phase != ledger.Live {
		t.Errorf("certified anew: %v", st.Phase)
	}
	if st, ok := reader.status(ended.key.ID()); ok {
		t.Errorf("its certificate has ended: %v", st.Phase)
	}
}

// What changes faster than it matters is told at a bounded pace, the latest
// state last.
func TestFlappingRecordsArePaced(t *testing.T) {
	w := newWorld(t, "flap", 2, 1)
	for _, s := range w.sites {
		w.start(s)
	}
	w.run(5 * time.Second)
	origin, reader := w.sites[0], w.sites[1]
	before := origin.node.Publisher().watermark
	const seconds = 10
	for n := range uint32(seconds * 100) {
		w.publish(origin, healthy(0, n%10))
		w.run(10 * time.Millisecond)
	}
	w.publish(origin, healthy(0, 7))
	w.run(time.Second)
	if told := origin.node.Publisher().watermark - before; told > uint64(seconds*time.Second/Pace)+Burst+1 {
		t.Errorf("1 000 changes in %d s: %d told", seconds, told)
	}
	if h, _ := reader.node.Ledger().Health(origin.network, serviceName(0), 80); h.Healthy != 7 {
		t.Errorf("the latest state is not the last: %+v", h)
	}
}

// Many records that change all the time are told together; a single edge before
// that is told at once.
// A few endpoints of one service that fail one after the other are each told at once.
func TestAFewChangesOfOneRecordAreToldAtOnce(t *testing.T) {
	w := newWorld(t, "burst", 2, 1)
	for _, s := range w.sites {
		w.start(s)
	}
	w.run(15 * time.Second)
	origin, reader := w.sites[0], w.sites[1]
	for n := range uint32(Burst) {
		w.publish(origin, healthy(0, 9-n))
		w.run(41 * time.Millisecond) // the way
		if h, _ := reader.node.Ledger().Health(origin.network, serviceName(0), 80); h.Healthy != 9-n {
			t.Errorf("change %d waits: %+v", n, h)
		}
	}
}

func TestManyEdgesShareStatements(t *testing.T) {
	w := newWorld(t, "many", 2, 1)
	for _, s := range w.sites {
		w.start(s)
	}
	w.run(5 * time.Second)
	origin, reader := w.sites[0], w.sites[1]
	before := origin.node.Publisher().count
	const seconds = 10
	for n := range seconds * 100 {
		w.publish(origin, healthy(n%100, uint32(n/100)))
		w.run(10 * time.Millisecond)
	}
	if said := origin.node.Publisher().count - before; said > 4*seconds+edgesBurst+1 {
		t.Errorf("1 000 edges of 100 records in %d s took %d statements", seconds, said)
	}
	w.run(2500 * time.Millisecond)
	for n := range 100 {
		if h, _ := reader.node.Ledger().Health(origin.network, serviceName(n), 80); h.Healthy != seconds-1 {
			t.Errorf("record %d: got %+v", n, h)
		}
	}
	w.publish(origin, healthy(0, 3))
	w.run(45 * time.Millisecond)
	if h, _ := reader.node.Ledger().Health(origin.network, serviceName(0), 80); h.Healthy != 3 {
		t.Errorf("a single edge waits: %+v", h)
	}
}

func FuzzReceive(f *testing.F) {
	w := newWorld(f, "fuzz", 2, 1)
	var seeds [][]byte
	w.record = func(_ string, b []byte) { seeds = append(seeds, b) }
	for _, s := range w.sites {
		w.start(s)
		w.publish(s, export(0), healthy(0, 9))
	}
	w.run(3 * time.Second)
	for _, b := range seeds[:min(len(seeds), 30)] {
		f.Add(b)
	}
	s := w.sites[0]
	f.Fuzz(func(t *testing.T, b []byte) {
		out, _, _ := s.node.Receive(w.sites[1].name, b, w.now)
		for _, o := range out {
			if len(o.Message) > MaxMessage || !o.Bulk && len(o.Message) > 64<<10 {
				t.Fatalf("answers with %d bytes", len(o.Message))
			}
		}
		if n := len(s.node.Ledger().Status()); n != 2 {
			t.Fatalf("%d instances", n)
		}
	})
}
