package file

import (
	"reflect"
	"testing"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// The example that lists a share says what the one that lists the pods comes to.
func TestTheExampleOfAShareSaysWhatThePodsComeTo(t *testing.T) {
	share := func(path string) (*mesh.Snapshot, mesh.Share) {
		s, err := Load("../../examples/two-networks/" + path)
		if err != nil {
			t.Fatal(err)
		}
		x, _ := s.Share(s.Service("hello.demo.mesh.internal"), "west")
		return s, x
	}
	_, listed := share("mesh.yaml")
	s, told := share("mesh-east.yaml")
	if !reflect.DeepEqual(listed, told) {
		t.Errorf("listed %+v, told %+v", listed.Export, told.Export)
	}
	if n := s.NumWorkloads(); n != 1 {
		t.Errorf("%d workloads, want that of east alone", n)
	}
}
