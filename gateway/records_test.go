package gateway

import (
	"math/rand/v2"
	"testing"
)

// However a sequence of records is cut into pieces, each begins and ends once, where it
// does.
func TestRecordsAreFollowedInAnyPieces(t *testing.T) {
	type record struct {
		begin int64
		kind  byte
		size  int
	}
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		var stream []byte
		var want []record
		for range rng.IntN(6) + 1 {
			size := rng.IntN(3) * rng.IntN(300)
			want = append(want, record{int64(len(stream)), byte(20 + rng.IntN(4)), size})
			stream = append(stream, want[len(want)-1].kind, tlsMajor, 3, byte(size>>8), byte(size))
			stream = append(stream, make([]byte, size)...)
		}
		var r recordTracker
		begun, ended := 0, 0
		for rest := stream; len(rest) > 0; {
			p := rest[:min(len(rest), 1+rng.IntN(1<<rng.IntN(10)))]
			rest = rest[len(p):]
			for len(p) > 0 {
				n, begins, ends := r.next(p)
				if n <= 0 || n > len(p) {
					t.Fatalf("seed %d: took %d of %d bytes", seed, n, len(p))
				}
				p = p[n:]
				if begins {
					begun++
				}
				if w := want[begun-1]; r.begin != w.begin || r.kind() != w.kind {
					t.Fatalf("seed %d: record %d begins at %d with type %d; want %+v", seed, begun, r.begin, r.kind(), w)
				}
				if ends {
					ended++
				}
				if w := want[begun-1]; ends && (r.size() != w.size || r.at != w.begin+recordHeader+int64(w.size)) {
					t.Fatalf("seed %d: record %d of %d bytes ends at %d; want %+v", seed, begun, r.size(), r.at, w)
				}
			}
		}
		if begun != len(want) || ended != len(want) {
			t.Fatalf("seed %d: %d begun, %d ended of %d", seed, begun, ended, len(want))
		}
	}
}
