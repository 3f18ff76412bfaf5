package antientropy

import (
	"fmt"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
)

// The key of a network comes minutes after its gateways were first heard, by way of a
// sibling that has had it all along: what they say is held one exchange later, and so it
// is when a key replaces another one.
func TestAKeyThatComesLateCountsAtOnce(t *testing.T) {
	for name, before := range map[string]func(networkkey.Known, networkkey.Private){
		"none was known": func(k networkkey.Known, _ networkkey.Private) { delete(k, "network-01") },
		"another was known": func(k networkkey.Known, other networkkey.Private) {
			k["network-01"] = []networkkey.Public{other.Public()}
		},
	} {
		for seed := range 10 {
			w := newWorld(t, fmt.Sprint("late key ", seed), 2, 2)
			w.only(3)
			reader, far := w.sites[1], w.sites[2]
			w.block(reader, far)
			for _, s := range w.sites {
				w.start(s)
			}
			other, err := networkkey.Generate(w.source)
			if err != nil {
				t.Fatal(err)
			}
			lacking := networkkey.Known{"network-00": w.known["network-00"], "network-01": w.known["network-01"]}
			before(lacking, other)
			setKnown(w, reader, lacking)
			w.publish(far, export(1), healthy(1, 9))
			w.run(3*time.Minute + time.Duration(seed)*137*time.Millisecond)
			if st, held := reader.status(far.key.ID()); held {
				t.Fatalf("%s: held without its key: %+v", name, st)
			}
			setKnown(w, reader, w.known)
			w.run(250 * time.Millisecond) // three ways of 40 ms, and pauses
			if st, _ := reader.status(far.key.ID()); !st.Complete {
				t.Errorf("%s, seed %d: a quarter of a second after the key has come %+v is held; want all", name, seed, st)
			}
			w.run(5 * time.Second)
			if st, _ := reader.status(far.key.ID()); st.Phase != ledger.Live {
				t.Errorf("%s, seed %d: 5 s after the key has come it is %v; want live", name, seed, st.Phase)
			}
		}
	}
}

func setKnown(w *world, s *site, known networkkey.Known) {
	out, changes := s.node.SetKnown(known, s.time(w))
	w.deliver(s, out, changes)
}
