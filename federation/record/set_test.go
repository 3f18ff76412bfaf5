package record

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func entry(key string, sequence uint64, body string) Entry {
	return Entry{Key: key, Sequence: sequence, Body: []byte(body)}
}

// built is the slow way to a set: from nothing, in another order.
func built(i Instance, m map[string]Entry) *Set {
	s := NewSet(i, 0, 0)
	for _, k := range slices.Backward(slices.Sorted(maps.Keys(m))) {
		if err := s.Put(m[k]); err != nil {
			panic(err)
		}
	}
	return s
}

func TestSetDependsOnlyOnWhatIsInIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		i := Instance{rapid.Byte().Draw(t, "instance")}
		s, model := NewSet(i, 0, 0), map[string]Entry{}
		other, otherModel := NewSet(i, 0, 0), map[string]Entry{}
		key := rapid.Map(rapid.IntRange(0, 600), func(n int) string { return fmt.Sprint("k", n) })
		for n := range rapid.IntRange(1, 300).Draw(t, "steps") {
			s, model := s, model
			if rapid.Bool().Draw(t, "other") {
				s, model = other, otherModel
			}
			k := key.Draw(t, "key")
			if rapid.IntRange(0, 3).Draw(t, "what") == 0 {
				_, had := model[k]
				if s.Remove(k) != had {
					t.Fatal("Remove says something else than it did")
				}
				delete(model, k)
				continue
			}
			e := entry(k, uint64(n+1), fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "body")))
			if err := s.Put(e); err != nil {
				t.Fatal(err)
			}
			model[k] = e
		}
		twin := built(i, model)
		if s.Root() != twin.Root() || s.Len() != len(model) || s.Bytes() != twin.Bytes() {
			t.Fatalf("root, len %d, bytes %d; want len %d, bytes %d", s.Len(), s.Bytes(), len(model), twin.Bytes())
		}
		pull(t, other, s)
		if other.Root() != s.Root() || other.Bytes() != s.Bytes() || other.Len() != s.Len() {
			t.Fatal("exchanging the buckets that differ did not make the sets equal")
		}
		for e := range other.All() {
			if string(e.Body) != string(model[e.Key].Body) || e.Sequence != model[e.Key].Sequence {
				t.Fatalf("got %v, want %v", e, model[e.Key])
			}
		}
	})
}

func pull(t *rapid.T, to, from *Set) {
	a, b := to.Hashes(), from.Hashes()
	for i := range a {
		if a[i] == b[i] {
			continue
		}
		if changed, err := to.Replace(i, from.Bucket(i), b[i]); err != nil || len(changed) == 0 {
			t.Fatalf("bucket %d: changed %v, error %v", i, changed, err)
		}
	}
}

func TestReplaceTakesNothingThatDoesNotFitTheHash(t *testing.T) {
	from := NewSet(Instance{1}, 0, 0)
	for n := range 1000 {
		if err := from.Put(entry(fmt.Sprint("k", n), 1, "b")); err != nil {
			t.Fatal(err)
		}
	}
	hashes, whole := from.Hashes(), from.Bucket(7)
	if len(whole) < 2 {
		t.Fatal("want a bucket of two")
	}
	to := NewSet(Instance{1}, 0, 0)
	empty := to.Root()
	otherBody := slices.Clone(whole)
	otherBody[0].Body = []byte("forged")
	older := slices.Clone(whole)
	older[0].Sequence = 2
	for name, entries := range map[string][]Entry{"left out": whole[1:], "another body": otherBody, "another sequence": older, "twice": append(whole[:1:1], whole...), "another bucket's": from.Bucket(8)} {
		if _, err := to.Replace(7, entries, hashes[7]); err == nil {
			t.Errorf("%s: was taken", name)
		}
	}
	if to.Root() != empty || to.Len() != 0 || to.Bytes() != 0 {
		t.Error("what was refused has left something behind")
	}
	if _, err := to.Replace(7, whole, hashes[7]); err != nil {
		t.Error(err)
	}
}

func TestSetIsBoundedInBytesAndNumber(t *testing.T) {
	s := NewSet(Instance{1}, 10, 1000)
	for n := range 10 {
		if err := s.Put(entry(fmt.Sprint("k", n), 1, "b")); err != nil {
			t.Fatal(err)
		}
	}
	root := s.Root()
	for name, e := range map[string]Entry{"one more": entry("k10", 1, "b"), "larger": entry("k1", 2, string(make([]byte, 400)))} {
		if err := s.Put(e); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: got %v, want ErrTooLarge", name, err)
		}
	}
	if s.Root() != root || s.Len() != 10 {
		t.Error("a refused entry left something behind")
	}
	if err := s.Put(entry("k1", 2, "c")); err != nil {
		t.Errorf("replacing within the limits: %v", err)
	}
	one := NewSet(Instance{1}, 0, 0)
	var err error
	for n := 0; err == nil && one.Len() < 10_000; n++ {
		k := fmt.Sprint("k", n)
		if one.BucketOf(k) == 3 {
			err = one.Put(entry(k, 1, string(make([]byte, 10<<10))))
		}
	}
	if !errors.Is(err, ErrTooLarge) || one.Bytes() > MaxBucketBytes {
		t.Errorf("one bucket of %d bytes: got %v, want ErrTooLarge", one.Bytes(), err)
	}
}

func BenchmarkPutAndRoot(b *testing.B) {
	s := NewSet(Instance{1}, 0, 0)
	body := make([]byte, 120)
	for n := range 4000 {
		_ = s.Put(Entry{fmt.Sprintf("service-%04d.namespace-%02d.svc.cluster.local", n, n%40), 1, body})
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		k := n % 4000
		_ = s.Put(Entry{fmt.Sprintf("service-%04d.namespace-%02d.svc.cluster.local", k, k%40), uint64(n + 2), body})
		s.Root()
	}
}
