package owned

import (
	"iter"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/isthmus-mesh/isthmus/controller/vip"
)

// known is the objects of one kind: as the watch has told them, and over that what was
// written here and has not been told yet. A watch tells versions in their order, so what
// was written with a version that it has reached is told, or was replaced or deleted since
// by others: then what is told counts. Not safe for concurrent use.
type known struct {
	told    map[vip.Name]*unstructured.Unstructured
	version string // the latest that was told
	written map[vip.Name]written
}

// written is what one write has made of an object.
type written struct {
	object  *unstructured.Unstructured // nil: it was deleted
	uid     types.UID
	version string // of what was deleted: the version that it had
}

func newKnown() known {
	return known{told: map[vip.Name]*unstructured.Unstructured{}, written: map[vip.Name]written{}}
}

func nameOf(o *unstructured.Unstructured) vip.Name {
	return vip.Name{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// get returns an object, nil if there is none.
func (k *known) get(n vip.Name) *unstructured.Unstructured {
	if w, ok := k.written[n]; ok {
		return w.object
	}
	return k.told[n]
}

// all returns the objects, in no order.
func (k *known) all() iter.Seq2[vip.Name, *unstructured.Unstructured] {
	return func(yield func(vip.Name, *unstructured.Unstructured) bool) {
		for n, o := range k.told {
			if _, over := k.written[n]; !over && !yield(n, o) {
				return
			}
		}
		for n, w := range k.written {
			if w.object != nil && !yield(n, w.object) {
				return
			}
		}
	}
}

// tell takes in an event of the watch; deleted is one that has o as it was last, with the
// version of its end.
func (k *known) tell(o *unstructured.Unstructured, deleted bool) {
	if n := nameOf(o); deleted {
		delete(k.told, n)
	} else {
		k.told[n] = o
	}
	k.reach(o.GetResourceVersion())
}

// replace takes in a list, which is as of version.
func (k *known) replace(list []*unstructured.Unstructured, version string) {
	clear(k.told)
	for _, o := range list {
		k.told[nameOf(o)] = o
	}
	if !reaches(version, k.version) { // versions of another history: the store was restored
		clear(k.written)
	}
	k.version = version
	k.settle()
}

// reach takes in that everything up to version was told.
func (k *known) reach(version string) {
	if reaches(version, k.version) {
		k.version = version
	}
	k.settle()
}

// wrote takes in what a write of ours has made of an object.
func (k *known) wrote(o *unstructured.Unstructured) {
	k.written[nameOf(o)] = written{o, o.GetUID(), o.GetResourceVersion()}
	k.settle()
}

// deleted takes in that we have deleted o, as it was.
func (k *known) deleted(o *unstructured.Unstructured) {
	k.written[nameOf(o)] = written{nil, o.GetUID(), o.GetResourceVersion()}
	k.settle()
}

// settle forgets of what was written all that the watch has reached. What was deleted is
// hidden until the watch tells what became of that version of it: its end, or, with
// finalizers, another version.
func (k *known) settle() {
	for n, w := range k.written {
		if !reaches(k.version, w.version) {
			continue
		}
		if o := k.told[n]; w.object == nil && o != nil && o.GetUID() == w.uid && o.GetResourceVersion() == w.version {
			continue
		}
		delete(k.written, n)
	}
}

// reaches reports whether version a is b or a later one; also if one of them is no number,
// so that what is told counts.
func reaches(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || order >= 0
}
