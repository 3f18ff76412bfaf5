package owned

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/isthmus-mesh/isthmus/controller/vip"
)

// server is the API server of a test: every version of every object, in their order.
type server struct {
	history []event // the version of each is its index + 1
	uids    int
}

type event struct {
	name vip.Name
	uid  types.UID
	gone bool // the object has ended
}

func (s *server) write(n vip.Name, uid types.UID, gone bool) (version int) {
	s.history = append(s.history, event{n, uid, gone})
	return len(s.history)
}

// at is an object as of a version; zero if there was none.
func (s *server) at(n vip.Name, version int) (uid types.UID, own int) {
	for i := version; i > 0; i-- {
		if e := s.history[i-1]; e.name == n && e.gone {
			return "", 0
		} else if e.name == n {
			return e.uid, i
		}
	}
	return "", 0
}

func (s *server) object(n vip.Name, uid types.UID, version int) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetNamespace(n.Namespace)
	o.SetName(n.Name)
	o.SetUID(uid)
	o.SetResourceVersion(strconv.Itoa(version))
	return o
}

// list is what there was as of a version.
func (s *server) list(names []vip.Name, version int) (out []*unstructured.Unstructured) {
	for _, n := range names {
		if uid, own := s.at(n, version); uid != "" {
			out = append(out, s.object(n, uid, own))
		}
	}
	return out
}

// change changes what there is of n, as anybody may.
func (s *server) change(rng *rand.Rand, n vip.Name) {
	uid, _ := s.at(n, len(s.history))
	if uid == "" {
		s.uids++
		s.write(n, types.UID(fmt.Sprint("u", s.uids)), false)
		return
	}
	s.write(n, uid, rng.IntN(2) == 0)
}

// TestWhatIsKnownIsTheLaterOfWhatWasToldAndWritten runs random schedules of writes of ours,
// whose answers come late, of changes, deletions and new objects by others, of a watch that
// tells everything in its order, but late, and of lists after a lost watch; and compares
// what is known of each object with the server's own history: it is the object as of what
// the watch has told or as of our last write, whichever is later.
func TestWhatIsKnownIsTheLaterOfWhatWasToldAndWritten(t *testing.T) {
	names := []vip.Name{{Namespace: "demo", Name: "a"}, {Namespace: "demo", Name: "b"}, {Namespace: "shop", Name: "a"}}
	for seed := range uint64(2_000) {
		rng := rand.New(rand.NewPCG(seed, 11))
		s, k := &server{history: make([]event, 8)}, newKnown() // versions of one digit and of two
		told := len(s.history)
		k.replace(nil, strconv.Itoa(told))
		ours := map[vip.Name]int{} // the version of our last write that was answered
		var answer func()          // of a write that is under way
		for step := range 60 {
			switch op := rng.IntN(12); {
			case op < 3:
				s.change(rng, names[rng.IntN(len(names))])
			case op < 6 && answer != nil:
				answer()
				answer = nil
			case op < 6:
				answer = s.ours(rng, &k, names[rng.IntN(len(names))], ours)
			case op < 10 && told < len(s.history):
				told++
				e := s.history[told-1]
				k.tell(s.object(e.name, e.uid, told), e.gone)
			case op == 10: // a bookmark
				k.reach(strconv.Itoa(told))
			case op == 11: // the watch was lost, and a list is as of some version since
				told += rng.IntN(len(s.history) - told + 1)
				k.replace(s.list(names, told), strconv.Itoa(told))
			}
			s.compare(t, &k, names, ours, told, fmt.Sprintf("seed %d, step %d", seed, step))
		}
		if answer != nil {
			answer()
		}
		for ; told < len(s.history); told++ {
			e := s.history[told]
			k.tell(s.object(e.name, e.uid, told+1), e.gone)
		}
		s.compare(t, &k, names, nil, told, fmt.Sprintf("seed %d, at the end", seed))
		if len(k.written) > 0 {
			t.Fatalf("seed %d: everything was told, and remembered is still that we wrote %v", seed, k.written)
		}
	}
}

// ours is a write by what is known, which fails if that is not what there is; answer takes
// in what came of it.
func (s *server) ours(rng *rand.Rand, k *known, n vip.Name, last map[vip.Name]int) (answer func()) {
	uid, own := s.at(n, len(s.history))
	has := k.get(n)
	switch {
	case has == nil && uid == "":
		s.uids++
		uid = types.UID(fmt.Sprint("u", s.uids))
	case has == nil || string(has.GetUID()) != string(uid) || has.GetResourceVersion() != strconv.Itoa(own):
		return nil // stale
	case rng.IntN(2) == 0:
		version := s.write(n, uid, true)
		return func() { last[n] = version; k.deleted(has) }
	}
	version := s.write(n, uid, false)
	return func() { last[n] = version; k.wrote(s.object(n, uid, version)) }
}

func (s *server) compare(t *testing.T, k *known, names []vip.Name, ours map[vip.Name]int, told int, when string) {
	t.Helper()
	n := 0
	for _, name := range names {
		uid, version := s.at(name, max(told, ours[name]))
		got := k.get(name)
		if (got == nil) != (uid == "") || got != nil && (got.GetUID() != uid || got.GetResourceVersion() != strconv.Itoa(version)) {
			t.Fatalf("%s: known of %s is %v; want %q in version %d; told is up to %d, ours is %d", when, name, got, uid, version, told, ours[name])
		}
		if uid != "" {
			n++
		}
	}
	for name, o := range k.all() {
		if n--; k.get(name) != o {
			t.Fatalf("%s: among all, %s is %v; by its name it is %v", when, name, o, k.get(name))
		}
	}
	if n != 0 {
		t.Fatalf("%s: all lacks %d objects", when, n)
	}
}

// What a finalizer keeps is to be seen as the API server has it, and not as gone.
func TestADeletedObjectThatAFinalizerKeepsIsThere(t *testing.T) {
	s, k, n := &server{}, newKnown(), vip.Name{Namespace: "demo", Name: "web"}
	k.replace([]*unstructured.Unstructured{s.object(n, "u1", 10)}, "10")
	if k.deleted(k.get(n)); k.get(n) != nil {
		t.Error("what we have deleted is there")
	}
	if k.tell(s.object(n, "u1", 11), false); k.get(n) == nil {
		t.Error("what a finalizer keeps is not there")
	}
}

// Versions start again where the store behind the API server was restored.
func TestAListOfAnotherHistoryCounts(t *testing.T) {
	s, k, n := &server{}, newKnown(), vip.Name{Namespace: "demo", Name: "web"}
	k.replace(nil, "1000")
	k.wrote(s.object(n, "u1", 1001))
	if k.replace(nil, "500"); k.get(n) != nil {
		t.Error("an object of the history that is lost is there")
	}
}
